"""Which of the others an agent reaches over the network. Called by `seat`.

A cut between two machines, which both reach all else, shows only when their workers wait for each other in vain. When
a generation ends and nobody is gone, all therefore try, in one round, where the others serve what is in their memory:
who is cut off from another is then known to all, and the next generation is formed of those that reach each other.
Later it is tried again now and then, so that a cut that has healed is noticed.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from shardline.components.elasticity.group.state import Member, State

_CONNECT_SECONDS = 1.0
_AGAIN_SECONDS = 5.0
#: In a large group each tries its neighbours on the ring of names: all pairs would be millions.
_MOST = 64


class Reach:
    """What one agent has tried."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def tried(
        self, member: Member, state: State, members: Callable[[], Sequence[Member]]
    ) -> tuple[int, tuple[str, ...]]:
        """`Member.tried` and `Member.cut_off`, as they are now: tried, if it is time to.

        Args:
            members: gives those that there are, with their addresses; seldom called.
        """
        due = bool(member.cut_off) and time.monotonic() - self._last > _AGAIN_SECONDS
        asked = state.phase == "gathering" and state.tries == state.round != member.tried
        if not asked and not due:
            return member.tried, member.cut_off
        suspects = _neighbours(member, members()) if asked else [m for m in members() if m.id in member.cut_off]
        missed = unreached(suspects)
        self._last = time.monotonic()
        return state.tries if asked else member.tried, missed


def unreached(members: Sequence[Member]) -> tuple[str, ...]:
    """The ids of those that do not answer at their address; one that serves nothing is not tried."""
    with_address = [member for member in members if member.address]
    if not with_address:
        return ()
    with ThreadPoolExecutor(max_workers=len(with_address)) as pool:
        answers = list(pool.map(lambda member: _answers(member.address), with_address))
    return tuple(member.id for member, answers in zip(with_address, answers, strict=True) if not answers)


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def _neighbours(member: Member, members: Sequence[Member]) -> list[Member]:
    """All others; in a large group those that come next on the ring."""
    ring = sorted((each for each in members if each.id != member.id), key=lambda each: each.id)
    place = sum(each.id < member.id for each in ring)
    return [*ring[place:], *ring[:place]][:_MOST]
