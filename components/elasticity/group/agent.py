"""An agent of a group: one on each machine or in each pod, all alike; whichever leads may be lost like any other.

Called by `shardline worker`. All agents `attend`. One of them takes the lead: it holds the run's lease and does the
training step, for which it is the `Agent` (`run`): it forms a generation of the members that are there, says what the
workers do, and sees them through. The others follow what the state says. When the leader is gone another one takes the
lead, with a higher fence.

The store of a generation lives in the leader's process and ends with it: a generation never outlives its leader.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from shardline.components.common.errors import (
    EXIT_BUG,
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
from shardline.components.common.storage import Storage
from shardline.components.common.workers import Job
from shardline.components.elasticity.budget.nodes import BadNodes
from shardline.components.elasticity.budget.verdict import Limits
from shardline.components.elasticity.group import forming
from shardline.components.elasticity.group.aside import Asides
from shardline.components.elasticity.group.board import Board
from shardline.components.elasticity.group.leading import Leading
from shardline.components.elasticity.group.leaving import Leaving
from shardline.components.elasticity.group.picture import Picture
from shardline.components.elasticity.group.seat import Seat
from shardline.components.elasticity.group.state import Member
from shardline.components.elasticity.processes import Processes
from shardline.components.elasticity.snapshots.keeper import Keeper


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
        self._seat = Seat(
            board,
            member=member,
            processes=processes,
            keeper=keeper,
            asides=Asides(nodes),
            timeout=timeout,
            leaving=Leaving(grace=grace),
            most=size.most,
        )
        self._leading = Leading(self._seat, size=size, fits=fits, limits=limits, timeout=timeout)

    @property
    def picture(self) -> Picture:
        """How the group looks from here; for any thread."""
        return Picture(
            id=self._seat.id,
            state=self._seat.known[0],
            restarts=self._leading.restarts,
            looked=self._seat.looked,
            reads=self._seat.reads,
        )

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
        with self._seat.present():
            while True:
                state, _, _ = self._seat.look()
                if state is not None and state.phase == "closed":
                    return state.result or {"exit_code": EXIT_BUG, "message": "the group has ended"}
                if self._seat.is_next:
                    if self._leading.take():
                        self._lead(lead, fence=state.fence if state else None)
                        continue
                elif state is not None:
                    self._seat.follow(state)
                self._seat.leave_if_asked()
                self._seat.wait()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Lead, for the length of the block, a group that no other agent is in."""
        with self._seat.present():
            self._leading.take()
            yield

    def run(self, job: Job, *, run: Storage, lease: Lease, events: EventLog) -> None:
        """As `Agent.run`; for the agent that leads."""
        self._leading.run(job, run=run, lease=lease, events=events)

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
            self._seat.leads = False
            self._seat.processes.stop()

    def _close(self, result: dict[str, Any]) -> None:
        self._leading.change(phase="closed", result=result)
