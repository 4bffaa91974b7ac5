"""A board with a second one beside it, for as long as the first is away. Called by whatever starts an agent in a pod.

The first is the Kubernetes API server, which training does not need; the second the run folder, without which there is
no training either. On the second the members go on as they are: whoever leads forms further generations, with a process
that was lost, or without a member that is gone. Who leads is decided on the first alone: an agent that only it cannot
reach must not take the group from those that can.

Of the states on the two that counts which was agreed on last, by leader and change; the leader writes it on the first
as soon as that is back.

Errors: `PeerLost` when neither answers; else as the boards'.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from shardline.components.common.errors import PeerLost
from shardline.components.elasticity.group.board import Board, Version
from shardline.components.elasticity.group.state import Member, State


@dataclass(frozen=True)
class _Seen:
    """Where a state was seen, and its version there."""

    board: Board
    version: Version


class StandbyBoard:
    """See the module.

    Args:
        member: the agent that this is for.
    """

    def __init__(self, first: Board, second: Board, *, member: str) -> None:
        self._first, self._second, self._member = first, second, member
        self._away = self._was_away = False
        self._returned = -float("inf")
        self._state: State | None = None
        self._members: dict[str, Member] = {}

    @property
    def beat_seconds(self) -> float:
        return self._now.beat_seconds

    @property
    def poll_seconds(self) -> float:
        return self._now.poll_seconds

    @property
    def silence_seconds(self) -> float:
        """Longer while members change from one board to the other, each when it notices."""
        both = self._first.silence_seconds + self._second.silence_seconds
        return both if self._away or time.monotonic() - self._returned < both else self._first.silence_seconds

    @property
    def spread_seconds(self) -> float:
        return self._now.spread_seconds

    def state(self) -> tuple[State | None, Version]:
        return self._agreed(self._first.state)

    def followed(self) -> tuple[State | None, Version]:
        return self._agreed(self._first.followed)

    def swap(self, version: Version, state: State) -> bool:
        """As `Board.swap`; False, too, for a board that is away, and for another leader while the first is."""
        assert isinstance(version, _Seen)
        if version.board is self._second:
            if self._state is None or self._state.leader != state.leader:
                return False
            swapped = self._second.swap(version.version, state)
        else:
            try:
                swapped = self._first.swap(version.version, state)
            except PeerLost:
                # It may be done or not: the next look is at the second board, where nothing is lost either way.
                self._lose()
                return False
        if swapped:
            self._state = state
        return swapped

    def members(self, names: Collection[str] | None = None) -> list[Member]:
        if not self._away:
            try:
                return self._newest(self._first.members(names), names, others=False)
            except PeerLost:
                self._lose()
        return self._newest(self._second.members(names), names, others=True)

    def put(self, member: Member) -> None:
        """Write the record where the others look for it; and see whether the first board is back."""
        if not self._away:
            try:
                self._first.put(member)
                return
            except PeerLost:
                self._lose()
        try:
            self._second.put(member)
        finally:
            with contextlib.suppress(PeerLost):
                self._first.put(member)
                self._away, self._returned = False, time.monotonic()

    def leave(self, member: str) -> None:
        if self._was_away:
            with contextlib.suppress(PeerLost):
                self._second.leave(member)
        self._first.leave(member)

    @property
    def _now(self) -> Board:
        return self._second if self._away else self._first

    def _lose(self) -> None:
        self._away = self._was_away = True

    def _agreed(self, on_first: Callable[[], tuple[State | None, Version]]) -> tuple[State | None, Version]:
        if not self._away:
            try:
                found, version = on_first()
            except PeerLost:
                self._lose()
            else:
                return self._known_to_first(found, version)
        found, version = self._second.state()
        if found is not None:
            self._note(found)
        return self._state, _Seen(self._second, version)

    def _known_to_first(self, found: State | None, version: Version) -> tuple[State | None, Version]:
        """The newest state, for a first board that has `found`: older, it may be, after it was away."""
        if found is None:
            self._state = None  # the job was ended: what comes is another group
        else:
            self._note(found)
        known = self._state
        if known is not found and known is not None and known.leader == self._member:
            # Nobody else needs a change to happen before the others see what they missed.
            with contextlib.suppress(PeerLost):
                self._first.swap(version, known)
        return known, _Seen(self._first, version)

    def _note(self, found: State) -> None:
        if self._state is None or found.age >= self._state.age:
            self._state = found

    def _newest(self, found: list[Member], names: Collection[str] | None, *, others: bool) -> list[Member]:
        """The newest record of each member; with `others`, of those too that have not written on this board yet."""
        newest = {each.id: each for each in found}
        asked = [known for known in self._members.values() if names is None or known.id in names]
        for known in asked:
            if known.id in newest:
                newest[known.id] = max(known, newest[known.id], key=lambda member: member.beat)
            elif others:
                newest[known.id] = known
        self._members = newest if names is None else {**self._members, **newest}
        return sorted(newest.values(), key=lambda member: member.id)
