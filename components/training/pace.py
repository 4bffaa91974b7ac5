"""How often snapshots are taken: so that they cost less than a hundredth of the time. Pure, but for the clock.

Called by `saves`, on rank 0. What a snapshot costs is the time for which training stood still, and what the steps that
ran while it was written took longer than the others.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from statistics import median
from typing import Literal

#: Of the time that goes by.
SHARE = 0.01
#: More often is of no use: starting again takes longer than this.
LEAST_SECONDS = 1.0
_STEPS = 51


class Pace:
    """When the next snapshot is due.

    Args:
        every: optimizer steps between two, or "auto".
    """

    def __init__(self, every: int | Literal["auto"], *, now: Callable[[], float] = time.perf_counter) -> None:
        self._every = every
        self._now = now
        self._since: float | None = None
        self._steps = 0
        self._cost = 0.0
        self._clear: deque[float] = deque(maxlen=_STEPS)

    def step(self, seconds: float, *, saving: bool) -> None:
        """An optimizer step took `seconds`; `saving`: while a snapshot was being written."""
        self._steps += 1
        if self._since is None:
            self._since = self._now()
        if not saving:
            self._clear.append(seconds)
        elif self._clear:
            self._cost += max(0.0, seconds - median(self._clear))

    def took(self, blocked: float) -> None:
        """A snapshot began, for which training stood still for `blocked` seconds."""
        self._since, self._steps, self._cost = self._now(), 0, blocked

    @property
    def seconds(self) -> float:
        """From the beginning of one to that of the next, as it is known by now."""
        return max(LEAST_SECONDS, self._cost / SHARE)

    def is_due(self) -> bool:
        if self._since is None:
            return False
        if self._every == "auto":
            return self._now() - self._since >= self.seconds
        return self._steps >= self._every - 1
