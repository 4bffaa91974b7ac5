"""The entries of a ledger: how each generation that was lost ended, and how far the run had come. Pure.

Called by whoever puts an entry down (`keeping`) and by what follows from all of them (`verdict`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal

VERSION = 1

#: killed      a worker was ended by a signal
#: failed      a worker ended with an error of its own that is worth a retry
#: device      a worker met a device or node fault
#: gone        an agent is gone, with all its workers: its process, its pod or its machine
#: terminated  a worker was asked to end, as an eviction does
#: peer        workers lost a peer or the storage, and nobody says why
#: rolled-back training goes on from an earlier checkpoint, as it decided
#: final       an error that would come again
#: job         the job was made again, as a whole
Cause = Literal["killed", "failed", "device", "gone", "terminated", "peer", "rolled-back", "final", "job"]

#: What speaks of the node that it happened on, or of its processes.
OF_NODE: frozenset[Cause] = frozenset({"killed", "failed", "device", "gone"})
#: What uses up a restart of those in a row.
IN_ROW: frozenset[Cause] = frozenset({*OF_NODE, "terminated", "peer"})
#: What uses up a restart of those in a time.
IN_WINDOW: frozenset[Cause] = frozenset({*IN_ROW, "job"})


@dataclass(frozen=True, kw_only=True)
class Failure:
    """What failed: a worker, or with `rank` None all that an agent had.

    Attributes:
        exit_code: a negative one is the signal that ended it; None where there was nobody to tell.
        member: the agent, in a pod the pod's; node: its machine, "" where that is not known.
    """

    cause: Cause
    exit_code: int | None = None
    rank: int | None = None
    member: str = ""
    node: str = ""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """The end of one generation; or, for the cause `job`, of a whole job.

    Attributes:
        generation: that ended; of a job the newest that it had.
        time: when that was noticed, RFC 3339.
        step: the newest that was saved, in a checkpoint or a snapshot.
        cause: of what counts most; failures: of all that was noticed.
        reason: in words.
        spent: why the run gave up then; "" when it went on.
    """

    generation: int
    time: str
    step: int
    cause: Cause
    reason: str
    failures: tuple[Failure, ...] = ()
    spent: str = ""

    @property
    def at(self) -> datetime:
        return datetime.fromisoformat(self.time)

    def nodes(self) -> set[str]:
        """The nodes that it speaks of."""
        return {each.node for each in self.failures if each.cause in OF_NODE and each.node}

    def to_json(self) -> dict[str, Any]:
        return {"v": VERSION, **asdict(self)}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Entry:
        """Raises ValueError, TypeError or KeyError for what is no entry."""
        if value["v"] != VERSION:
            raise ValueError(f"version {value['v']}")
        fields = {name: item for name, item in value.items() if name != "v"}
        entry = Entry(**{**fields, "failures": tuple(Failure(**each) for each in value["failures"])})
        if entry.at.tzinfo is None:
            raise ValueError(f"{entry.time} has no time zone")
        return entry


def row(entries: Sequence[Entry]) -> list[Entry]:
    """The newest losses between which no further step was saved.

    Further is what no entry before had; after a roll-back, what is beyond it. Snapshots that got lost and are made
    again are no progress. A row ends where the run gave up: to begin again is a decision of its own.
    """
    best, found = -1, list[Entry]()
    for entry in entries:
        if entry.cause == "rolled-back":
            best = entry.step
        if entry.cause not in IN_ROW:
            continue
        if entry.step > best or (found and found[-1].spent):
            found = []
        best = max(best, entry.step)
        found.append(entry)
    return found
