"""How often agents write and look, by how many there may be. Pure. Called by the boards.

An API server bears some hundreds of calls a second beside its other work: the kubelets of 5,000 nodes make as many.
So a group of some thousand members does all at a slower pace than one of eight, for which everything happens at once.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Calls a second that all members of a group make together while nothing happens.
RATE = 400
#: A group as large as that may make a call each at the same moment.
_AT_ONCE = 64


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Seconds.

    Attributes:
        beat: between two writings of a member; silence: after so many without one it counts as gone.
        spread: over which members spread a call that all of them have reason to make at the same moment.
    """

    beat: float
    silence: float
    spread: float

    @staticmethod
    def of(most: int, *, beat: float, silence: float) -> Pace:
        """That of a group of up to `most` members; `beat` and `silence` are those of a small one."""
        slower = max(1.0, most / RATE / beat)
        return Pace(beat=beat * slower, silence=silence * slower, spread=max(0, most - _AT_ONCE) / RATE)
