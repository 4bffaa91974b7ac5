"""What follows a generation that ended before its time: another one, or the error that ends the job.

Called by the agents, which start the workers. What may be lost is the ledger's to say (`budget`): it is the run's own,
so it counts on whoever leads, and whatever was started again meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from shardline.components.common.errors import PeerLost, Regrouped, ShardlineError, SnapshotLost, StopRequested
from shardline.components.common.events import EventLog
from shardline.components.common.owner import Lease
from shardline.components.common.storage import Storage
from shardline.components.common.streams import now
from shardline.components.elasticity.budget.causes import Place, entry_of
from shardline.components.elasticity.budget.keeping import Ledger
from shardline.components.elasticity.budget.ledger import Entry
from shardline.components.elasticity.budget.nodes import BadNodes
from shardline.components.elasticity.budget.verdict import Limits, Verdict, judge
from shardline.components.elasticity.ends import End
from shardline.components.elasticity.failures import as_error, cause_of, is_final, reason_of
from shardline.components.training.checkpoint import catalog


@dataclass(frozen=True, kw_only=True)
class Loss:
    """How a generation ended before its time, as far as that was noticed.

    Attributes:
        ends: of the workers that had ended.
        gone: what is lost beside them, in words; agents: those that are gone, by their ids.
        places: where its workers were.
    """

    generation: int
    ends: Sequence[End] = ()
    gone: Sequence[str] = ()
    agents: Sequence[str] = ()
    places: Sequence[Place] = ()


class Restarts:
    """The restarts that a job has left, for the length of a `with` block.

    Args:
        job: its name.
        nodes: the records of nodes to do without; None where there is only the one that this is.

    Attributes:
        used: how often the workers were started again by this process.
    """

    def __init__(
        self, job: str, *, run: Storage, lease: Lease, events: EventLog, limits: Limits, nodes: BadNodes | None
    ) -> None:
        self._job, self._run, self._lease, self._events = job, run, lease, events
        self._limits, self._nodes = limits, nodes
        self._ledger = Ledger(run)
        self.used = 0

    def __enter__(self) -> Restarts:
        self._ledger.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ledger.__exit__(*exc)

    def after(self, loss: Loss, *, snapshot: int | None = None) -> bool:
        """Return when the workers are to be started again: whether they may go on from a snapshot.

        Args:
            snapshot: the step of one in memory that is newer than any checkpoint.

        Raises:
            ShardlineError: the error that ended the generation would come again, or no restart is left.
            StopRequested: a person asked for its end.
            Superseded: another process has taken the run over.
        """
        self._lease.check()
        left = cause_of(self._run, generation=loss.generation)
        cause = left or (_as_peer_lost(loss.gone[0]) if loss.gone else None)
        if cause is not None and cause["type"] == StopRequested.__name__:
            raise StopRequested(str(cause["message"]))
        if cause is not None and cause["type"] in (Regrouped.__name__, SnapshotLost.__name__):
            return bool(cause["type"] == Regrouped.__name__)  # what could not be read must not come back from memory
        entry, place = self._entry(left, loss, snapshot=snapshot)
        if entry.cause == "rolled-back":
            self._ledger.add(entry)
            return False  # nor what a roll-back leaves behind
        if is_final(cause):
            self._ledger.add(entry)
            raise as_error(cause, why=entry.reason, spent="")
        verdict = self._judge(entry)
        self._ledger.add(replace(entry, spent=verdict.spent))
        self._set_aside(verdict)
        if verdict.spent:
            told = {"generation": entry.generation, "in_a_row": verdict.in_a_row, "cause": entry.cause}
            self._events.emit("budget.spent", told, reason=f"{entry.reason}, and {verdict.spent}")
            raise as_error(cause, why=entry.reason, spent=verdict.spent)
        self.used += 1
        self._tell(entry, verdict, place=place)
        return True

    def _entry(self, record: dict[str, Any] | None, loss: Loss, *, snapshot: int | None) -> tuple[Entry, str]:
        """What goes into the ledger, and where training goes on from, in words."""
        if snapshot is not None:
            step, place = snapshot, f"from the snapshot of step {snapshot:,}"
        elif found := catalog.current(self._run):
            step, place = found.step, f"from the checkpoint of step {found.step:,}"
        else:
            step, place = 0, "from the beginning, without a checkpoint"
        entry = entry_of(
            loss.generation,
            record=record,
            ends=loss.ends,
            gone=loss.agents,
            places=loss.places,
            step=step,
            time=now(),
            reason="; ".join(loss.gone) or reason_of(record, ends=loss.ends),
        )
        return entry, place

    def _judge(self, entry: Entry) -> Verdict:
        before = [each for each in self._ledger.entries() if each.generation < entry.generation or each.cause == "job"]
        at = datetime.now(UTC)
        verdict = judge([*before, entry], self._limits, now=at)
        if self._nodes is None or not verdict.aside:
            return replace(verdict, aside=())
        try:
            cleared = {each.node: when for each in verdict.aside if (when := self._nodes.cleared(each.node))}
        except ShardlineError:
            return replace(verdict, aside=())  # the next loss will tell it once more
        return judge([*before, entry], self._limits, now=at, cleared=cleared) if cleared else verdict

    def _set_aside(self, verdict: Verdict) -> None:
        for each in verdict.aside:
            with contextlib.suppress(ShardlineError):
                reason = each.reason
                if self._nodes and self._nodes.set_aside(
                    each.node, reason=reason, run=self._run.url, entries=each.entries
                ):
                    told = {"node": each.node, "generations": [entry.generation for entry in each.entries]}
                    self._events.emit("node.set_aside", told, reason=f"{each.node}: {reason}")

    def _tell(self, entry: Entry, verdict: Verdict, *, place: str) -> None:
        ranks = sorted(each.rank for each in entry.failures if each.cause == entry.cause and each.rank is not None)
        told = {
            "generation": entry.generation,
            "restarts_left": verdict.left,
            "in_a_row": verdict.in_a_row,
            "cause": entry.cause,
            "ranks": ranks,
        }
        self._events.emit("worker.lost", told, reason=f"{entry.reason}; {self._job} starts again {place}")


def _as_peer_lost(message: str) -> dict[str, Any]:
    return {"type": PeerLost.__name__, "message": message, "exit_code": PeerLost.exit_code, "rank": None}
