"""What every agent of a group does, whoever leads: it shows itself, looks at the others, and has workers as the state
says.

Called by `agent` and `leading`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from shardline.components.common.errors import PeerLost
from shardline.components.elasticity.group import forming
from shardline.components.elasticity.group.aside import Asides
from shardline.components.elasticity.group.board import Board
from shardline.components.elasticity.group.leaving import Leaving
from shardline.components.elasticity.group.presence import Presence
from shardline.components.elasticity.group.reach import Reach
from shardline.components.elasticity.group.state import Member, State
from shardline.components.elasticity.processes import Processes
from shardline.components.elasticity.snapshots.keeper import Keeper

#: What the workers of a lost generation have to close what is open: nothing of it is needed.
_LOST_SECONDS = 1.0


class Seat:
    """An agent's place in its group.

    Args:
        member: the agent, as the others are to know it.
        processes: for its workers; keeper: of what is in this machine's memory, open.
        asides: the nodes to do without.
        timeout: seconds for which a board that cannot be read is borne, while nothing is at work here.
        leaving: what asks it to go.

    Attributes:
        known: the state, its version, and the members that live, as last seen.
        looked: when that was tried last, by `time.monotonic`; reads: whether it could be read then.
    """

    def __init__(
        self,
        board: Board,
        *,
        member: Member,
        processes: Processes,
        keeper: Keeper,
        asides: Asides,
        timeout: int,
        leaving: Leaving,
    ) -> None:
        self.board, self.processes, self.asides, self.leaving = board, processes, asides, leaving
        self.known: tuple[State | None, object, list[Member]] = (None, None, [])
        self.looked = time.monotonic()
        self._keeper, self._timeout = keeper, timeout
        self._presence = Presence(board, member)
        self._pulse, self._reach = forming.Pulse(), Reach()
        self._unread_since: float | None = None

    @property
    def member(self) -> Member:
        return self._presence.member

    @property
    def id(self) -> str:
        return self.member.id

    @property
    def reads(self) -> bool:
        return self._unread_since is None

    def wait(self) -> None:
        """Until it is time to look again, or a worker ends."""
        self.processes.wait(self.board.poll_seconds)

    def leave_if_asked(self) -> None:
        """Raises Stopped when this agent was asked to leave and there is nothing, or no time, left to wait for."""
        self.leaving.check(at_work=bool(self.processes.generation))

    @contextlib.contextmanager
    def present(self) -> Iterator[None]:
        """Take part for the length of the block; no worker is left after it."""
        self.processes.warm()
        with self.leaving.heard(), self._presence:
            try:
                yield
            finally:
                self.processes.stop()
                self.processes.close()

    def look(self) -> tuple[State | None, object, list[Member]]:
        """The state, and the members that live. While the board fails, as they were.

        Raises:
            PeerLost: it has failed for `timeout` seconds, and nothing is at work here.
        """
        self.looked = time.monotonic()
        try:
            state, version = self.board.state()
            members = self.board.members()
            living = self._pulse.living(members, silence=self.board.silence_seconds, now=time.monotonic())
        except PeerLost:
            # Workers that are at work need no board.
            since = self._unread_since = self._unread_since or time.monotonic()
            if time.monotonic() - since > self._timeout and not self.processes.generation:
                raise
            return self.known
        self._unread_since = None
        self._keeper.look(self.id, living, first_generation=state.first_snapshots if state else 0)
        held = self._keeper.held()
        self._presence.tell(own=held.own, copies=held.copies)
        self.known = (state, version, living)
        return self.known

    def follow(self, state: State) -> None:
        """Have the workers that the state asks for, and say how they are.

        Raises:
            NodeSetAside: the others train without this node.
        """
        processes, member = self.processes, self.member
        first_rank = state.ranks.get(self.id) if state.phase == "running" else None
        if self.leaving.asked:
            self._presence.tell(leaving=True)
        if first_rank is None:
            if forming.is_left_out(state, member):
                raise self.asides.error(member.node)
            processes.stop(patience=_LOST_SECONDS)
            processes.warm()
            # Who has yet to import torch would keep the others waiting in their first meeting.
            seen = state.round if processes.ready else member.round
            self._presence.tell(round=seen, generation=0, ends=())
        elif processes.generation != state.generation:
            processes.start(state.job, count=member.processes, first_rank=first_rank, world=state.world)
        if processes.generation:
            self._presence.tell(round=state.round, generation=processes.generation, ends=processes.ends())
        tried, cut_off = self._reach.tried(self.member, state, self.known[2])
        self._presence.tell(tried=tried, cut_off=cut_off)
