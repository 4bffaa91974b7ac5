"""What every agent of a group does, whoever leads: it shows itself, looks at the others, and has workers as the state
says.

Called by `agent` and `leading`.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Sequence

from shardline.components.common.errors import EXIT_DEVICE_FAULT, PeerLost
from shardline.components.elasticity.ends import End
from shardline.components.elasticity.group import forming
from shardline.components.elasticity.group.aside import Asides
from shardline.components.elasticity.group.board import Board
from shardline.components.elasticity.group.leaving import Leaving
from shardline.components.elasticity.group.lookout import Lookout
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
        member: the agent, as the others are to know it; most: members that there may be.
        processes: for its workers; keeper: of what is in this machine's memory, open.
        asides: the nodes to do without.
        timeout: seconds for which a board that cannot be read is borne, while nothing is at work here.
        leaving: what asks it to go.
        clock, pick: of seconds, and of what is to be at random.

    Attributes:
        known: the state, its version, and the members that live, as last seen: all of them for one that leads or may
            have to, see `lookout`.
        leads: whether it has taken the lead: then it reads the state as it is now.
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
        most: int,
        clock: Callable[[], float] = time.monotonic,
        pick: random.Random | None = None,
    ) -> None:
        self.board, self.processes, self.asides, self.leaving = board, processes, asides, leaving
        self.known: tuple[State | None, object, list[Member]] = (None, None, [])
        self.leads = False
        self.looked = clock()
        self._keeper, self._timeout, self._clock = keeper, timeout, clock
        pick = pick or random.Random()
        self.presence = Presence(board, member, clock=clock, pick=pick)
        self._lookout, self._reach = Lookout(member.id, most=most, pick=pick), Reach()
        self._unread_since: float | None = None

    @property
    def member(self) -> Member:
        return self.presence.member

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
        with self.leaving.heard(), self.presence:
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
        self.looked = self._clock()
        try:
            state, version = self.board.state() if self.leads else self.board.followed()
            self._lookout.look(
                state,
                now=self._clock(),
                beat=self.board.beat_seconds,
                silence=self.board.silence_seconds,
                read=self.board.members,
            )
        except PeerLost:
            # Workers that are at work need no board.
            since = self._unread_since = self._unread_since or self._clock()
            if self._clock() - since > self._timeout and not self.processes.generation:
                raise
            return self.known
        self._unread_since = None
        if state is not None:
            self._keeper.look(self.id, state)
        held = self._keeper.held()
        self.presence.tell(own=held.own, copies=held.copies)
        self.known = (state, version, self._lookout.living)
        return self.known

    @property
    def is_next(self) -> bool:
        """Whether this agent has to take the lead, as things were at the last look."""
        return not self.leaving.asked and self._lookout.is_next(self.known[0])

    def follow(self, state: State) -> None:
        """Have the workers that the state asks for, and say how they are.

        Raises:
            NodeSetAside: the others train without this node.
        """
        processes, member = self.processes, self.member
        first_rank = state.ranks.get(self.id) if state.phase == "running" else None
        if self.leaving.asked:
            self.presence.tell(leaving=True)
        if first_rank is None:
            if forming.is_left_out(state, member):
                raise self.asides.error(member.node)
            processes.stop(patience=_LOST_SECONDS)
            processes.warm()
            # Who has yet to import torch would keep the others waiting in their first meeting.
            seen = state.round if processes.ready else member.round
            self.presence.tell(round=seen, generation=0, ends=())
        elif processes.generation != state.generation:
            processes.start(state.job, count=member.processes, first_rank=first_rank, world=state.world)
        if processes.generation:
            ends = processes.ends()
            own_fault = any(_is_own_fault(end) for end in ends)
            self.presence.tell(at_once=own_fault, round=state.round, generation=processes.generation, ends=ends)
        tried, cut_off = self._reach.tried(self.member, state, lambda: self._others(state))
        self.presence.tell(tried=tried, cut_off=cut_off)

    def _others(self, state: State) -> Sequence[Member]:
        """Members to be tried whether they are reached: by the state where this agent does not look at all of them."""
        if self._lookout.sees_all:
            return self.known[2]
        return [
            Member(id=name, host="", processes=0, node=node, address=address)
            for name, (node, address) in state.serving.items()
        ]


def _is_own_fault(end: End) -> bool:
    """Whether a worker ended for a reason that only few have at the same moment: the leader has to know it soon."""
    return end.exit_code < 0 or end.exit_code == EXIT_DEVICE_FAULT
