"""From how a generation ended to an entry of the ledger: what failed, where, and of which class that is. Pure."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardline.components.common.errors import (
    EXIT_DEVICE_FAULT,
    EXIT_PEER_LOST,
    EXITS_STOPPED,
    FIRST_RETRYABLE,
    RolledBack,
)
from shardline.components.elasticity.budget.ledger import Cause, Entry, Failure
from shardline.components.elasticity.ends import End

#: Of several causes of one end that which says most, the others follow from it.
_ORDER: tuple[Cause, ...] = ("rolled-back", "final", "device", "killed", "failed", "gone", "terminated", "peer")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where some of a generation's workers were: `processes` of them from rank `first` on."""

    member: str
    node: str
    first: int
    processes: int


def entry_of(
    generation: int,
    *,
    record: Mapping[str, Any] | None,
    ends: Sequence[End],
    gone: Iterable[str],
    places: Iterable[Place],
    step: int,
    time: str,
    reason: str,
) -> Entry:
    """The entry for a generation that ended before its time.

    Args:
        record: the error of the worker that tells the cause, as it left it.
        ends: of the workers that had ended when that was noticed; gone: the agents that were.
    """
    there = list(places)
    failures = [_with_place(each, there) for each in (*_by_end(ends, record), *_by_record(record))]
    nodes = {place.member: place.node for place in there}
    failures += [Failure(cause="gone", member=name, node=nodes.get(name, "")) for name in gone]
    causes = {each.cause for each in failures} or {"peer"}
    return Entry(
        generation=generation,
        time=time,
        step=step,
        cause=min(causes, key=_ORDER.index),
        reason=reason,
        failures=tuple(dict.fromkeys(failures)),
    )


def cause_of_exit(exit_code: int) -> Cause:
    """The class of a worker's end, by its exit code; a negative one is a signal."""
    if exit_code < 0:
        return "terminated" if -exit_code in (signal.SIGTERM, signal.SIGINT) else "killed"
    if exit_code in EXITS_STOPPED:
        return "terminated"
    if exit_code == EXIT_PEER_LOST:
        return "peer"
    if exit_code == EXIT_DEVICE_FAULT:
        return "device"
    return "final" if exit_code < FIRST_RETRYABLE else "failed"


def _by_end(ends: Sequence[End], record: Mapping[str, Any] | None) -> list[Failure]:
    """Workers that ended for a reason of their own: those that merely lost a peer say nothing new."""
    explained = record is not None and int(record["exit_code"]) < FIRST_RETRYABLE
    found = []
    for end in ends:
        cause = cause_of_exit(end.exit_code)
        if cause == "final" and not explained:
            cause = "failed"  # without a word: an interpreter or a library that aborted
        if cause not in ("peer", "final"):
            found.append(Failure(cause=cause, exit_code=end.exit_code, rank=end.rank))
    return found


def _by_record(record: Mapping[str, Any] | None) -> list[Failure]:
    if record is None:
        return []
    code = int(record["exit_code"])
    cause: Cause = "rolled-back" if record["type"] == RolledBack.__name__ else cause_of_exit(code)
    return [Failure(cause=cause, exit_code=code, rank=record["rank"])]


def _with_place(failure: Failure, places: Iterable[Place]) -> Failure:
    for place in places:
        if failure.rank is not None and place.first <= failure.rank < place.first + place.processes:
            return replace(failure, member=place.member, node=place.node)
    return failure
