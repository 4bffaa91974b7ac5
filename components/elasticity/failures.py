"""What ended a worker: the record that it leaves, which of a generation's records tells the cause, and what to say.

A worker writes its classified error into the run folder before it exits. When one meets an error the others lose a
peer; the cause is the error of the one that did not merely lose another.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from shardline.components.common.errors import (
    EXIT_DEVICE_FAULT,
    EXIT_PEER_LOST,
    EXITS_STOPPED,
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
from shardline.components.elasticity.ends import End

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
        return PeerLost(f"a peer is gone or silent: {_first_sentence(error)}")
    if isinstance(error, RuntimeError) and "cuda error" in text:
        return DeviceFault(f"a device failed: {str(error).splitlines()[0]}")
    return error


def _first_sentence(error: BaseException) -> str:
    """What a library's error says at first, without the places in its sources; the log has all of it."""
    line = re.sub(r"\[[^\]\s]*\.(?:cc|cpp|cu|h|hpp|py):\d+\]\s*", "", str(error).splitlines()[0])
    return re.split(r"(?<=\w|\])\.(?=\s|$)", line, maxsplit=1)[0]


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


def reason_of(record: dict[str, Any] | None, *, ends: Sequence[End]) -> str:
    """Why a generation ended, in a sentence: by a signal to a worker, else by what one of them recorded.

    Args:
        record: as from `cause_of`.
        ends: of the workers that had ended when the loss was noticed.
    """
    killed = [end for end in ends if end.exit_code < 0]
    if killed:
        return ", ".join(map(str, killed))
    if record is not None and record["exit_code"] in EXITS_STOPPED:
        return f"rank {record['rank']} was {record['message']}"
    if record is not None:
        return f"rank {record['rank']}: {record['message']}"
    return ", ".join(map(str, ends)) or "a worker is gone"


def as_error(record: dict[str, Any] | None, *, why: str, spent: str) -> ShardlineError:
    """The error to raise for a generation that is not followed by another.

    Args:
        why: it ended, in words.
        spent: why there is no further try, in words that go on from that.
    """
    if record is not None and is_final(record):
        return RecordedError(record)
    code = int(record["exit_code"]) if record is not None else EXIT_PEER_LOST
    return RecordedError({"message": f"{why}, and {spent}", "exit_code": code})
