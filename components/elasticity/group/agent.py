"""An agent of a group: one on each machine or in each pod, all alike; whichever leads may be lost like any other.

Called by `shardline worker`. All agents `attend`. One of them takes the lead: it holds the run's lease and does the
training step, for which it is the `Agent` (`run`): it forms a generation of the members that are there, says what the
workers do, and sees them through. The others follow what the state says. When the leader is gone another one takes the
lead, with a higher fence.

The store of a generation lives in the leader's process and ends with it: a generation never outlives its leader.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from torch.distributed import TCPStore

from shardline.components.common import control
from shardline.components.common.errors import (
    EXIT_BUG,
    EXIT_PEER_LOST,
    NodeSetAside,
    PeerLost,
    ShardlineError,
    Stopped,
    StopRequested,
    Superseded,
    to_record,
)
from shardline.components.common.events import EventLog
from shardline.components.common.owner import Lease
from shardline.components.common.peers import place_of
from shardline.components.common.storage import Storage
from shardline.components.common.workers import Job
from shardline.components.elasticity.budget.nodes import BadNodes
from shardline.components.elasticity.budget.verdict import Limits
from shardline.components.elasticity.ends import End
from shardline.components.elasticity.group import forming, losses
from shardline.components.elasticity.group.aside import Asides
from shardline.components.elasticity.group.board import Board
from shardline.components.elasticity.group.leaving import Leaving
from shardline.components.elasticity.group.picture import Picture
from shardline.components.elasticity.group.presence import Presence
from shardline.components.elasticity.group.reach import Reach
from shardline.components.elasticity.group.state import Member, State
from shardline.components.elasticity.processes import Processes
from shardline.components.elasticity.restarts import Loss, Restarts
from shardline.components.elasticity.snapshots import choice
from shardline.components.elasticity.snapshots.keeper import Keeper
from shardline.components.elasticity.worker_main import describe
from shardline.components.training.checkpoint import catalog

#: What the workers of a lost generation have to close what is open: nothing of it is needed.
_LOST_SECONDS = 1.0


class GroupAgent:
    """One agent.

    Args:
        member: this agent, as the others are to know it.
        processes: for its workers; keeper: of what is in this machine's memory, open.
        size: of the group.
        fits: whether there is a layout for a world of that many workers.
        limits: of what may be lost; nodes: the records of nodes to do without, None where there is no other node.
        timeout: seconds of silence after which a worker counts a peer as lost, and storage that fails is waited for.
        grace: seconds that the workers have to save when this agent is asked to leave.
    """

    def __init__(
        self,
        board: Board,
        *,
        member: Member,
        processes: Processes,
        keeper: Keeper,
        size: forming.Size,
        fits: Callable[[int], bool],
        limits: Limits,
        timeout: int,
        grace: int,
        nodes: BadNodes | None = None,
    ) -> None:
        self._board, self._size, self._fits = board, size, fits
        self._limits, self._timeout, self._asides = limits, timeout, Asides(nodes)
        self._presence = Presence(board, member)
        self._processes, self._keeper = processes, keeper
        self._leaving = Leaving(grace=grace)
        self._pulse, self._reach = forming.Pulse(), Reach()
        self._unread_since: float | None = None
        self._known: tuple[State | None, object, list[Member]] = (None, None, [])
        self._told_apart: dict[str, tuple[str, ...]] = {}
        self._restarts: Restarts | None = None
        self._before: State | None = None
        self._looked = time.monotonic()

    @property
    def picture(self) -> Picture:
        """How the group looks from here; for any thread."""
        return Picture(
            id=self._id,
            state=self._known[0],
            restarts=self._restarts.used if self._restarts else 0,
            looked=self._looked,
            reads=self._unread_since is None,
        )

    @property
    def _id(self) -> str:
        return self._presence.member.id

    def attend(self, lead: Callable[[GroupAgent, int | None], None]) -> dict[str, Any]:
        """Take part until the job has ended; its result, the same for all.

        Args:
            lead: does the job with the agent that it is given; called when this one leads, with the fence of the leader
                before, who is gone.

        Raises:
            Stopped: a signal; what its workers had done is saved if there was time, and the others go on without it.
            PeerLost: the board could not be read for `timeout` seconds, and nothing is at work here.
            NodeSetAside: the others train without this node.
        """
        with self._present():
            while True:
                state, version, living = self._look()
                if state is not None and state.phase == "closed":
                    return state.result or {"exit_code": EXIT_BUG, "message": "the group has ended"}
                if forming.next_leader(state, living) == self._id:
                    if self._take_lead(state, version):
                        self._lead(lead, fence=state.fence if state else None)
                        continue
                elif state is not None:
                    self._follow(state)
                self._leaving.check(at_work=bool(self._processes.generation))
                self._processes.wait(self._board.poll_seconds)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Lead, for the length of the block, a group that no other agent is in."""
        with self._present():
            self._take_lead(None, None)
            yield

    # what all do

    @contextlib.contextmanager
    def _present(self) -> Iterator[None]:
        self._processes.warm()
        with self._leaving.heard(), self._presence:
            try:
                yield
            finally:
                self._processes.stop()
                self._processes.close()

    def _look(self) -> tuple[State | None, object, list[Member]]:
        """The state, and the members that live. While the board fails, as they were."""
        self._looked = time.monotonic()
        try:
            state, version = self._board.state()
            members = self._board.members()
            living = self._pulse.living(members, silence=self._board.silence_seconds, now=time.monotonic())
        except PeerLost:
            # Workers that are at work need no board.
            since = self._unread_since = self._unread_since or time.monotonic()
            if time.monotonic() - since > self._timeout and not self._processes.generation:
                raise
            return self._known
        self._unread_since = None
        self._keeper.look(self._id, living, first_generation=state.first_snapshots if state else 0)
        held = self._keeper.held()
        self._presence.tell(own=held.own, copies=held.copies)
        self._known = (state, version, living)
        return self._known

    def _follow(self, state: State) -> None:
        """Have the workers that the state asks for, and say how they are."""
        processes, member = self._processes, self._presence.member
        first_rank = state.ranks.get(self._id) if state.phase == "running" else None
        if self._leaving.asked:
            self._presence.tell(leaving=True)
        if first_rank is None:
            if forming.is_left_out(state, member):
                raise self._asides.error(member.node)
            processes.stop(patience=_LOST_SECONDS)
            processes.warm()
            # Who has yet to import torch would keep the others waiting in their first meeting.
            seen = state.round if processes.ready else member.round
            tried, cut_off = self._reach.tried(member, state, self._known[2])
            self._presence.tell(round=seen, generation=0, ends=(), tried=tried, cut_off=cut_off)
        elif processes.generation != state.generation:
            processes.start(state.job, count=member.processes, first_rank=first_rank, world=state.world)
        if processes.generation:
            self._presence.tell(round=state.round, generation=processes.generation, ends=processes.ends())

    # what the leader does

    def _take_lead(self, state: State | None, version: object) -> bool:
        self._before = state
        if state is None:
            return self._board.swap(version, State(leader=self._id))
        tries = state.round + 1 if state.tries == state.round else state.tries
        taken = state.changed(
            leader=self._id, term=state.term + 1, round=state.round + 1, tries=tries, phase="gathering"
        )
        return self._board.swap(version, taken)

    def _lead(self, lead: Callable[[GroupAgent, int | None], None], *, fence: int | None) -> None:
        try:
            lead(self, fence)
        except Superseded:
            return  # whoever leads now decides
        except StopRequested as error:
            self._close(to_record(error))
        except (Stopped, PeerLost, NodeSetAside):
            raise  # of this machine, it may be: the others go on
        except Exception as error:
            self._close(to_record(error))
            if not isinstance(error, ShardlineError):
                raise
        else:
            self._close({"exit_code": 0})
        finally:
            self._processes.stop()

    def _close(self, result: dict[str, Any]) -> None:
        self._change(phase="closed", result=result)

    def _change(self, **changes: Any) -> State:
        """Change the state, as its leader.

        Raises:
            Superseded: another agent leads.
        """
        while True:
            state, version, _ = self._look()
            if state is None or state.leader != self._id:
                raise Superseded("another agent leads the group now")
            changed = state.changed(**changes)
            if self._board.swap(version, changed):
                return changed

    def run(self, job: Job, *, run: Storage, lease: Lease, events: EventLog) -> None:
        """As `Agent.run`; for the agent that leads."""
        nodes, limits = self._asides.records, self._limits
        with Restarts(job.name, run=run, lease=lease, events=events, limits=limits, nodes=nodes) as self._restarts:
            state = self._change(fence=lease.fence)
            if loss := losses.inherited(self._before):
                self._recover(self._restarts, loss, run=run)
            else:
                self._change(aside=self._asides.names(state.aside))
            while True:
                state, store = self._form(job, run=run, lease=lease, events=events)
                ends, gone = self._see_through(state, job=job, run=run)
                del store
                if not ends and not gone:
                    return
                loss = losses.noticed(state, self._known[2], ends=ends, gone=gone)
                # Who only lost a peer may have lost it to a cut in the network: nobody is gone, and it comes again.
                cut = not gone and all(end.exit_code == EXIT_PEER_LOST for end in ends)
                again = state.round + 1
                self._change(phase="gathering", round=again, tries=again if cut else state.tries, generation=0)
                self._recover(self._restarts, loss, run=run)

    def _recover(self, restarts: Restarts, loss: Loss, *, run: Storage) -> None:
        """Return when another generation is to be formed, with what it is to know."""
        found = self._newest_snapshot(run)
        kept = restarts.after(loss, snapshot=place_of(found)[1] if found else None)
        state = self._known[0]
        changes: dict[str, Any] = {} if kept else {"first_snapshots": loss.generation + 1}
        self._change(aside=self._asides.names(state.aside if state else ()), **changes)

    def _newest_snapshot(self, run: Storage) -> str | None:
        """The name of one that is newer than any checkpoint."""
        state, _, living = self._look()
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
        host = self._presence.member.host
        # Port 0: the system picks one that is free. A fresh store for each generation: in a shared one, gloo finds the
        # addresses of processes that are gone.
        store = TCPStore(host, 0, is_master=True, wait_for_workers=False)
        description = describe(
            job, generation=generation, world=world, run=run, fence=lease.fence, timeout=self._timeout
        )
        found = self._newest_snapshot(run) if job.regroups else None
        snapshot = choice.described(found, self._known[2]) if found else None
        told = {**description, "host": host, "port": store.port, "snapshot": snapshot}
        nodes = {member.id: member.node for member in members}
        state = self._change(phase="running", generation=generation, ranks=ranks, world=world, nodes=nodes, job=told)
        return state, store

    def _gather(self) -> list[Member]:
        present: set[str] = set()
        since = time.monotonic()
        while True:
            state, living = self._tick()
            if forming.yields(state, living, size=self._size, fits=self._fits):
                raise self._asides.error(self._presence.member.node)
            there = {member.id for member in living}
            if not there <= present:
                since = time.monotonic()
            present = there
            waited = time.monotonic() - since
            members = forming.gathered(state, living, size=self._size, waited=waited, fits=self._fits)
            if members and forming.is_isolated(members[0], living):
                raise PeerLost("this agent reaches fewer of the others than they reach of each other")
            if members:
                return members

    def _tell_apart(self, members: list[Member], *, events: EventLog) -> None:
        """Tell of each member that is left out because of a cut between it and another."""
        for member in self._known[2]:
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
            _, living = self._tick()
            working = forming.at_work(state, living)
            failed = [end for member in working for end in member.ends if end.exit_code]
            gone = [f"agent {name} is gone" for name in forming.lost(state, living)]
            if failed or gone:
                return failed, gone
            if len(working) == len(state.ranks) and all(member.done for member in working):
                return [], []
            settled = time.monotonic() - began > self._size.settle
            grows = settled and forming.could_grow(state, living, size=self._size, fits=self._fits)
            shrinks = any(member.leaving for member in working)
            if shrinks and not job.regroups:
                self._leaving.check(at_work=False)
            if (grows or shrinks) and job.regroups and not asked:
                control.put(run, "regroup", fence=state.fence)
                asked = True

    def _tick(self) -> tuple[State, list[Member]]:
        """Look once, and do as the state says, as any other member does.

        Raises:
            Superseded: another agent leads.
        """
        self._processes.wait(self._board.poll_seconds)
        state, _, living = self._look()
        if state is None or state.leader != self._id:
            raise Superseded("another agent leads the group now")
        self._follow(state)
        self._leaving.check(at_work=bool(self._processes.generation))
        return state, living
