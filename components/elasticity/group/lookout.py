"""What an agent looks at of the others, and when it is the one to take the lead. Pure, but for the reading it is given.

Called by `seat`. The leader has to know all members, and so have a few *candidates*: one of them takes the lead as soon
as the leader is gone, and knows then who else is. All others look at the leader's record alone, and seldom. Only when
it has stood still over several looks, because the candidates are gone too, do they take the lead. The looks of those
that come later in the order lie further apart, by the logarithm of their place: few try before all know of the first.

A group that is no larger than the number of candidates consists of them.
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Callable, Collection

from shardline.components.elasticity.group import forming
from shardline.components.elasticity.group.state import Member, State

CANDIDATES = 8
#: Of those that are none: looks in a row at which a leader is as it was, or not there.
_LOOKS = 3
#: Beats between two of them, for the first that are none; for all that come later more.
_BEATS = 4

Read = Callable[[Collection[str] | None], list[Member]]


class Lookout:
    """What one agent has seen.

    Args:
        member: its id.
        most: members that there may be.

    Attributes:
        living: the members that live, as last seen: all of them, or of the others the leader alone.
        sees_all: whether it looks at all members.
    """

    def __init__(self, member: str, *, most: int, pick: random.Random) -> None:
        self.living: list[Member] = []
        self.sees_all = False
        self._member, self._most, self._pick = member, most, pick
        self._pulse = forming.Pulse()
        self._leader: str | None = ""
        self._beat: int | None = None
        self._looks, self._next = 0, 0.0
        self._acts = False

    def look(self, state: State | None, *, now: float, beat: float, silence: float, read: Read) -> None:
        """Look, if it is time to.

        Args:
            beat, silence: as the board's.
            read: members' records, as `Board.members`; an error of it leaves all as it was.
        """
        self._acts = False
        leader = state.leader if state is not None else None
        self.sees_all = leader == self._member or place(self._member, state, most=self._most) < CANDIDATES
        if self.sees_all:
            self.living = self._pulse.living(read(None), silence=silence, now=now)
            self._leader = ""
        else:
            self._look_at_leader(
                leader, now=now, apart=beat * beats_apart(self._member, state, most=self._most), read=read
            )

    def is_next(self, state: State | None) -> bool:
        """Whether this agent has to take the lead now."""
        if state is not None and (state.phase == "closed" or any(each.id == state.leader for each in self.living)):
            # One that led, and was started again under its name.
            return state.phase != "closed" and state.leader == self._member
        if not self.sees_all:
            return self._acts
        able = [each for each in self.living if place(each.id, state, most=self._most) < CANDIDATES]
        return forming.next_leader(state, able) == self._member

    def _look_at_leader(self, leader: str | None, *, now: float, apart: float, read: Read) -> None:
        if leader != self._leader:
            self._leader, self._beat, self._looks, self.living = leader, None, 0, []
            self._next = now + self._pick.uniform(0, apart)
        if now < self._next:
            return
        self._next = now + apart
        found = read([leader]) if leader is not None else []
        beat = found[0].beat if found else None
        self._looks = 0 if beat is not None and beat != self._beat else self._looks + 1
        self._beat = beat
        self._acts = self._looks >= _LOOKS
        self.living = [] if self._acts else found


def place(member: str, state: State | None, *, most: int) -> int:
    """Where a member stands in the order in which they take the lead: by its rank; spares, and all while there are no
    ranks, in some order that all agree on."""
    if most <= CANDIDATES:
        return 0
    ranks = state.ranks if state is not None else {}
    if state is not None and member in ranks:
        return ranks[member] * len(ranks) // state.world
    return len(ranks) + zlib.crc32(member.encode()) % most


def beats_apart(member: str, state: State | None, *, most: int) -> int:
    """Beats between two looks of a member that is no candidate."""
    return _BEATS * (1 + int(math.log(place(member, state, most=most) / CANDIDATES, 8)))
