"""What follows a generation that ended before its time: another one, or the error that ends the job.

Called by the agents, which start the workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardline.components.common.errors import PeerLost, Regrouped, RolledBack, SnapshotLost, StopRequested
from shardline.components.common.events import EventLog
from shardline.components.common.owner import Lease
from shardline.components.common.storage import Storage
from shardline.components.elasticity.ends import End
from shardline.components.elasticity.failures import as_error, cause_of, is_final, reason_of
from shardline.components.training.checkpoint import catalog

#: Ends that the workers agreed on: nothing was lost, so they use up no restart.
_AGREED = (RolledBack.__name__, Regrouped.__name__, SnapshotLost.__name__)


class Restarts:
    """The restarts that a job has left.

    Args:
        job: its name.
        most: how often its workers are started again after a loss.
    """

    def __init__(self, job: str, *, run: Storage, lease: Lease, events: EventLog, most: int) -> None:
        self._job, self._run, self._lease, self._events = job, run, lease, events
        self._most = self._left = most

    @property
    def used(self) -> int:
        return self._most - self._left

    def after(
        self, generation: int, *, ends: Sequence[End], gone: Sequence[str] = (), snapshot: int | None = None
    ) -> bool:
        """Return when the workers are to be started again: whether they may go on from a snapshot.

        Args:
            ends: of the workers that had ended when that was noticed.
            gone: what is lost beside them, in words.
            snapshot: the step of one in memory that is newer than any checkpoint.

        Raises:
            ShardlineError: the error that ended the generation would come again, or no restart is left.
            StopRequested: a person asked for its end.
            Superseded: another process has taken the run over.
        """
        self._lease.check()
        cause = cause_of(self._run, generation=generation)
        if cause is None and gone:
            cause = {"type": PeerLost.__name__, "message": gone[0], "exit_code": PeerLost.exit_code, "rank": None}
        if cause is not None and cause["type"] == StopRequested.__name__:
            raise StopRequested(str(cause["message"]))
        if cause is not None and cause["type"] in _AGREED:
            # What a roll-back leaves behind must not come back from memory, nor what could not be read.
            return bool(cause["type"] == Regrouped.__name__)
        if is_final(cause) or not self._left:
            raise as_error(cause, ends=ends, restarts=self._most)
        self._left -= 1
        self._tell(cause, generation, ends=ends, gone=gone, snapshot=snapshot)
        return True

    def _tell(
        self,
        cause: dict[str, Any] | None,
        generation: int,
        *,
        ends: Sequence[End],
        gone: Sequence[str],
        snapshot: int | None,
    ) -> None:
        known = [cause["rank"]] if cause and cause["rank"] is not None else []
        lost = sorted(end.rank for end in ends if end.exit_code < 0) or known
        data = {"generation": generation, "restarts_left": self._left, "ranks": lost}
        if snapshot is not None:
            place = f"from the snapshot of step {snapshot:,}"
        elif record := catalog.current(self._run):
            place = f"from the checkpoint of step {record.step:,}"
        else:
            place = "from the beginning, without a checkpoint"
        why = "; ".join(gone) or reason_of(cause, ends=ends)
        self._events.emit("worker.lost", data, reason=f"{why}; {self._job} starts again {place}")
