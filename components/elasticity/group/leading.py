"""What the agent of a group does that leads: it forms generations of the members that are there, sees them through, and
decides what follows when one is lost.

Called by `agent`. Whatever is decided is in the state, which the others follow, and this agent like them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from torch.distributed import TCPStore

from shardline.components.common import control
from shardline.components.common.errors import EXIT_PEER_LOST, PeerLost, Superseded
from shardline.components.common.events import EventLog
from shardline.components.common.owner import Lease
from shardline.components.common.peers import place_of
from shardline.components.common.storage import Storage
from shardline.components.common.workers import Job
from shardline.components.elasticity.budget.verdict import Limits
from shardline.components.elasticity.ends import End
from shardline.components.elasticity.group import forming, losses
from shardline.components.elasticity.group.seat import Seat
from shardline.components.elasticity.group.state import Member, State
from shardline.components.elasticity.restarts import Loss, Restarts
from shardline.components.elasticity.snapshots import choice
from shardline.components.elasticity.worker_main import describe
from shardline.components.training.checkpoint import catalog


class Leading:
    """The lead of a group, while the agent on `seat` has it.

    Args:
        size, fits, limits, timeout: as for `GroupAgent`.
    """

    def __init__(
        self, seat: Seat, *, size: forming.Size, fits: Callable[[int], bool], limits: Limits, timeout: int
    ) -> None:
        self._seat, self._size, self._fits = seat, size, fits
        self._limits, self._timeout = limits, timeout
        self._told_apart: dict[str, tuple[str, ...]] = {}
        self._restarts: Restarts | None = None
        self._upkeep_at = -float("inf")
        self._before: State | None = None

    @property
    def restarts(self) -> int:
        """How often the workers were started again."""
        return self._restarts.used if self._restarts else 0

    def take(self) -> bool:
        """Take the lead that nobody has in the state that is known; False when somebody else was first."""
        seat, known = self._seat, self._seat.known[0]
        try:
            state, version = seat.board.state()
            if (state and state.age) != (known and known.age):
                return False
            self._before = state
            seat.leads = seat.board.swap(version, succeeding(state, seat.id))
        except PeerLost:
            return False  # it may be done or not: the next look tells
        return seat.leads

    def change(self, **changes: Any) -> State:
        """Change the state, as its leader.

        Raises:
            Superseded: another agent leads.
        """
        while True:
            state, version, _ = self._seat.look()
            if state is None or state.leader != self._seat.id:
                raise Superseded("another agent leads the group now")
            changed = state.changed(**changes)
            if self._seat.board.swap(version, changed):
                return changed

    def run(self, job: Job, *, run: Storage, lease: Lease, events: EventLog) -> None:
        """As `Agent.run`; for the agent that leads."""
        nodes, limits = self._seat.asides.records, self._limits
        with Restarts(job.name, run=run, lease=lease, events=events, limits=limits, nodes=nodes) as self._restarts:
            state = self.change(fence=lease.fence)
            if loss := losses.inherited(self._before):
                self._recover(self._restarts, loss, run=run)
            else:
                self.change(aside=self._seat.asides.names(state.aside))
            while True:
                state, store = self._form(job, run=run, lease=lease, events=events)
                ends, gone = self._see_through(state, job=job, run=run)
                del store
                if not ends and not gone:
                    return
                loss = losses.noticed(state, self._seat.known[2], ends=ends, gone=gone)
                # Who only lost a peer may have lost it to a cut in the network: nobody is gone, and it comes again.
                cut = not gone and all(end.exit_code == EXIT_PEER_LOST for end in ends)
                again = state.round + 1
                self.change(phase="gathering", round=again, tries=again if cut else state.tries, generation=0)
                self._recover(self._restarts, loss, run=run)

    def _recover(self, restarts: Restarts, loss: Loss, *, run: Storage) -> None:
        """Return when another generation is to be formed, with what it is to know."""
        found = self._newest_snapshot(run)
        kept = restarts.after(loss, snapshot=place_of(found)[1] if found else None)
        state = self._seat.known[0]
        changes: dict[str, Any] = {} if kept else {"first_snapshots": loss.generation + 1}
        self.change(aside=self._seat.asides.names(state.aside if state else ()), **changes)

    def _newest_snapshot(self, run: Storage) -> str | None:
        """The name of one that is newer than any checkpoint."""
        state, _, living = self._seat.look()
        found = choice.newest(living, first_generation=state.first_snapshots if state else 0)
        if found is None:
            return None
        durable = catalog.current(run)
        return None if durable and (durable.generation, durable.step) >= place_of(found) else found

    def _form(self, job: Job, *, run: Storage, lease: Lease, events: EventLog) -> tuple[State, TCPStore]:
        """Wait for the members of the next generation, and have them start."""
        members = self._gather()
        self._tell_apart(members, events=events)
        generation = lease.next_generation()
        ranks, world = forming.ranks_of(members)
        host = self._seat.member.host
        # Port 0: the system picks one that is free. A fresh store for each generation: in a shared one, gloo finds the
        # addresses of processes that are gone.
        store = TCPStore(host, 0, is_master=True, wait_for_workers=False)
        description = describe(
            job, generation=generation, world=world, run=run, fence=lease.fence, timeout=self._timeout
        )
        found = self._newest_snapshot(run) if job.regroups else None
        snapshot = choice.described(found, self._seat.known[2]) if found else None
        told = {**description, "host": host, "port": store.port, "snapshot": snapshot}
        nodes = {member.id: member.node for member in members}
        state = self.change(
            phase="running",
            generation=generation,
            ranks=ranks,
            world=world,
            nodes=nodes,
            serving=choice.serving(self._seat.known[2]),
            job=told,
        )
        return state, store

    def _gather(self) -> list[Member]:
        gathering = forming.Gathering(self._size, self._fits)
        while True:
            state, living = self._tick()
            if forming.yields(state, living, size=self._size, fits=self._fits):
                raise self._seat.asides.error(self._seat.member.node)
            members = gathering.members(state, living, now=time.monotonic())
            if members and forming.is_isolated(members[0], living):
                raise PeerLost("this agent reaches fewer of the others than they reach of each other")
            if members:
                return members

    def _tell_apart(self, members: list[Member], *, events: EventLog) -> None:
        """Tell of each member that is left out because of a cut between it and another."""
        for member in self._seat.known[2]:
            missed = [other.id for other in members if forming.apart(member, other)]
            if missed and member.cut_off != self._told_apart.get(member.id):
                self._told_apart[member.id] = member.cut_off
                data = {"member": member.id, "node": member.node, "cut_off": missed}
                reason = f"no connection between {member.id} and {', '.join(missed)}; the others go on without it"
                events.emit("member.apart", data, reason=reason)

    def _see_through(self, state: State, *, job: Job, run: Storage) -> tuple[list[End], list[str]]:
        """Until the generation has ended: the workers that ended badly, and the members that are gone."""
        began, asked = time.monotonic(), False
        while True:
            current, living = self._tick()
            self._keep_up(current, living)
            course = forming.course(state, living)
            if course.failed or course.gone or course.ended:
                return course.failed, course.gone
            settled = time.monotonic() - began > self._size.settle
            grows = settled and forming.could_grow(state, living, size=self._size, fits=self._fits)
            shrinks = course.leaving
            if shrinks and not job.regroups:
                self._seat.leaving.check(at_work=False)
            if (grows or shrinks) and job.regroups and not asked:
                control.put(run, "regroup", fence=state.fence)
                asked = True

    def _keep_up(self, state: State, living: list[Member]) -> None:
        """Tell the others, each beat, who serves what is in its memory, and what of it is not needed any more."""
        if time.monotonic() < self._upkeep_at:
            return
        self._upkeep_at = time.monotonic() + self._seat.board.beat_seconds
        if news := choice.news(state, living):
            self.change(**news)

    def _tick(self) -> tuple[State, list[Member]]:
        """Look once, and do as the state says, as any other member does.

        Raises:
            Superseded: another agent leads.
        """
        self._seat.wait()
        state, _, living = self._seat.look()
        if state is None or state.leader != self._seat.id:
            raise Superseded("another agent leads the group now")
        self._seat.follow(state)
        self._seat.leave_if_asked()
        return state, living


def succeeding(state: State | None, leader: str) -> State:
    """The state with which `leader` takes the lead that nobody has in `state`."""
    if state is None:
        return State(leader=leader)
    tries = state.round + 1 if state.tries == state.round else state.tries
    return state.changed(leader=leader, term=state.term + 1, round=state.round + 1, tries=tries, phase="gathering")
