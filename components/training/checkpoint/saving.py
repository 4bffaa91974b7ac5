"""Saving and loading a run's state, together with all ranks.

Called by `session`. Tensors go through torch's distributed checkpoint, whose plan knows nothing of the layout they are
loaded under; all else is JSON in the commit record.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from shardline.components.common.errors import DamagedData, ShardlineError, StorageLost
from shardline.components.common.events import EventLog
from shardline.components.common.storage import Storage
from shardline.components.common.workers import WorkerContext
from shardline.components.training.checkpoint import catalog
from shardline.components.training.checkpoint.catalog import CheckpointRecord
from shardline.components.training.checkpoint.store import Reader, TensorLoadPlanner, TensorSavePlanner, Writer


def save(
    tensors: dict[str, Tensor],
    *,
    context: WorkerContext,
    step: int,
    state: dict[str, Any],
    identity: str,
    layout: dict[str, Any],
) -> CheckpointRecord:
    """Write a checkpoint and commit it. All ranks call it together; all of them return or raise.

    Raises:
        ShardlineError: the first failure of any rank; the checkpoint then doesn't count.
    """
    folder = context.run.at(catalog.folder_of(step))
    prefix = f"g{context.generation:06d}"
    writer = Writer(folder, prefix=prefix, rank=context.rank)
    try:
        with _alone_or_together() as no_dist:
            dcp.save(tensors, storage_writer=writer, planner=TensorSavePlanner(), no_dist=no_dist)
    except CheckpointException as error:
        raise _first_failure(error, folder.url) from error
    record = CheckpointRecord(
        step=step,
        generation=context.generation,
        files={file.name: {"size": file.size, "sha256": file.sha256} for file in writer.files},
        index=f"{prefix}-index.json",
        state=state,
        identity=identity,
        layout=layout,
    )
    committed: CheckpointRecord = _together(lambda: _commit(context, record), rank=context.rank)
    return committed


def _commit(context: WorkerContext, record: CheckpointRecord) -> CheckpointRecord:
    # An old generation's rank 0 that wakes up here finds a fence that isn't its own.
    context.lease.check()
    catalog.commit(context.run, record)
    return record


def load(tensors: dict[str, Tensor], *, run: Storage, record: CheckpointRecord) -> None:
    """Fill `tensors` in place from a verified checkpoint. All ranks call it together.

    Raises:
        DamagedData: the checkpoint doesn't hold what the index says.
    """
    folder = run.at(record.folder)
    try:
        reader = Reader(folder, index=record.index)
        with _alone_or_together() as no_dist:
            dcp.load(tensors, storage_reader=reader, planner=TensorLoadPlanner(), no_dist=no_dist)
    except CheckpointException as error:
        raise _first_failure(error, folder.url) from error


def newest_sound(context: WorkerContext, *, events: EventLog | None) -> CheckpointRecord | None:
    """The checkpoint to go on from, with every file's hash verified; None when the run has none.

    A damaged one is named in an event and put aside, and the one before is taken. All ranks call it together and get
    the same answer; each verifies its share of the files.

    Args:
        events: rank 0's log.

    Raises:
        DamagedData: there were checkpoints, and none of them is sound.
    """
    run, reasons = context.run, []

    def aside(folder: str, reason: str) -> None:
        catalog.put_aside(run, folder, generation=context.generation, mark="damaged")
        if events:
            events.emit("checkpoint.damaged", {"folder": folder}, reason=reason)

    records: list[CheckpointRecord] = _together(lambda: catalog.committed(run, on_damage=aside), rank=context.rank)
    for record in records:
        found = _any(catalog.damage(run, record, rank=context.rank, world=context.world))
        if found is None:
            return record
        reasons.append(found)
        _together(lambda record=record, found=found: aside(record.folder, found), rank=context.rank)
    if reasons:
        raise DamagedData(
            f"no checkpoint is sound: {'; '.join(reasons)}",
            where=run.url_of(catalog.FOLDER),
            hint="bring the files back, or start the run anew under another name",
        )
    return None


@contextlib.contextmanager
def _alone_or_together() -> Iterator[bool]:
    """Whether this process has no group to work with, which torch would warn of each time."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        yield not dist.is_initialized()


def _together(action: Any, *, rank: int) -> Any:
    """What `action` returns on rank 0, on every rank; its error is raised on every rank."""
    outcome: list[Any] = [None, None]
    if rank == 0:
        try:
            outcome[0] = action()
        except ShardlineError as error:
            outcome[1] = error
    if dist.is_initialized():
        dist.broadcast_object_list(outcome, src=0)
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]


def _any(message: str | None) -> str | None:
    """The first rank's message that is not None, the same on every rank."""
    if not dist.is_initialized():
        return message
    messages: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(messages, message)
    return next((found for found in messages if found is not None), None)


def _first_failure(error: CheckpointException, where: str) -> ShardlineError:
    for _, (failure, _trace) in sorted(error.failures.items()):
        if isinstance(failure, ShardlineError):
            return failure
    rank, (failure, _trace) = sorted(error.failures.items())[0]
    return StorageLost(f"rank {rank} failed: {failure}", where=where)


def describe(record: CheckpointRecord) -> dict[str, Any]:
    """What an event says of a checkpoint."""
    content = asdict(record)
    return {
        "step": content["step"],
        "generation": content["generation"],
        "bytes": sum(file["size"] for file in record.files.values()),
        "files": len(record.files),
        "position": record.state["position"],
    }
