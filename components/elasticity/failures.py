"""What ended a worker: the record that it leaves, and which of a generation's records tells the cause.

A worker writes its classified error into the run folder before it exits. When one meets an error the others lose a
peer; the cause is the error of the one that did not merely lose another.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from shardline.components.common.errors import (
    EXIT_DEVICE_FAULT,
    EXIT_PEER_LOST,
    FIRST_RETRYABLE,
    DeviceFault,
    PeerLost,
    RecordedError,
    ShardlineError,
    UserError,
    to_record,
)
from shardline.components.common.runfolder import read_json, write_json
from shardline.components.common.storage import Storage
from shardline.components.common.streams import now

_PEER_GONE = (
    "connection closed by peer",
    "connection reset by peer",
    "connection refused",
    "broken pipe",
    "timed out waiting",
    "socket timeout",
    "connectfullmesh failed",
    "application timeout caused pair closure",
)


def classify(error: BaseException) -> BaseException:
    """`error` as a `ShardlineError` where it is about a peer or a device; itself otherwise."""
    if isinstance(error, ShardlineError):
        return error
    if isinstance(error, torch.OutOfMemoryError):
        return UserError(
            f"a device has too little memory: {str(error).splitlines()[0]}",
            where="training",
            hint="lower training.microbatch, or give training.layout more dp_shard or pp",
        )
    text = str(error).lower()
    if isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and any(sign in text for sign in _PEER_GONE)
    ):
        return PeerLost(f"a peer is gone or silent: {str(error).splitlines()[0]}")
    if isinstance(error, RuntimeError) and "cuda error" in text:
        return DeviceFault(f"a device failed: {str(error).splitlines()[0]}")
    return error


def _folder(generation: int) -> str:
    return f"errors/{generation:06d}"


def leave_record(run: Storage, error: BaseException, *, generation: int, rank: int) -> None:
    record = {"time": now(), "rank": rank, **to_record(error)}
    write_json(run, f"{_folder(generation)}/{rank:05d}.json", record)


def cause_of(run: Storage, *, generation: int) -> dict[str, Any] | None:
    """The record that tells why a generation ended; None when no worker left one (it was killed)."""
    records = [read_json(run, f"{_folder(generation)}/{name}") for name in run.names(_folder(generation))]
    order = {EXIT_PEER_LOST: 2, EXIT_DEVICE_FAULT: 0}
    found = sorted((r for r in records if r), key=lambda r: (order.get(r["exit_code"], 1), r["time"]))
    return found[0] if found else None


def is_final(record: dict[str, Any] | None) -> bool:
    """Whether another attempt would meet the same error."""
    return record is not None and int(record["exit_code"]) < FIRST_RETRYABLE


def as_error(record: dict[str, Any] | None, *, exit_codes: dict[int, int]) -> ShardlineError:
    """The error to raise for a generation whose workers ended with `exit_codes`, by rank."""
    if record is not None:
        return RecordedError(record)
    ends = ", ".join(f"rank {rank} with {code}" for rank, code in sorted(exit_codes.items()))
    return PeerLost(f"workers ended without a word: {ends}")
