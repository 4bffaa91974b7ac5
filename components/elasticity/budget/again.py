"""A whole job that is made again, after one that failed: it counts like the loss of a generation. Called by `launcher`.

Only what may be lost in a time stands against it: a row of losses without progress ended with the job that failed.
"""

from __future__ import annotations

from datetime import UTC, datetime

from shardline.components.common.errors import EXIT_PEER_LOST, RecordedError
from shardline.components.common.events import EventLog
from shardline.components.common.storage import Storage
from shardline.components.common.streams import now
from shardline.components.elasticity.budget.keeping import Ledger
from shardline.components.elasticity.budget.ledger import Entry
from shardline.components.elasticity.budget.verdict import Limits, judge


def count(run: Storage, *, limits: Limits, job: str, uid: str, writer: str) -> None:
    """Put down that the job `job` failed and is to be made again, once for each such job.

    Args:
        uid: of the job that failed; writer: of the event, a name that nobody else has.

    Raises:
        RecordedError: nothing of the budget is left for it.
    """
    ledger = Ledger(run)
    before = ledger.entries()
    entry = Entry(
        generation=max((each.generation for each in before), default=0),
        time=now(),
        step=max((each.step for each in before), default=0),
        cause="job",
        reason=f"{job} failed and was to be made again",
    )
    ledger.add(entry, job=uid)
    ledger.write()
    verdict = judge(ledger.entries(), limits, now=datetime.now(UTC))
    if verdict.spent:
        reason = f"{entry.reason}, and {verdict.spent}"
        with EventLog(run, generation=entry.generation, writer=writer) as events:
            events.emit("budget.spent", {"job": job, "cause": entry.cause}, reason=reason)
        raise RecordedError({"message": reason, "exit_code": EXIT_PEER_LOST})
