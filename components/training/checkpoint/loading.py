"""Loading a run's state, together with all ranks, from the newest checkpoint that is sound.

Called by `session`, `whole`, the training and the evaluation worker. Tensors go through torch's distributed checkpoint,
whose plan knows nothing of the layout they are loaded under; all else is JSON in the commit record.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from shardline.components.common.errors import DamagedData, EnvironmentLacking, ShardlineError, StorageLost
from shardline.components.common.events import EventLog
from shardline.components.common.storage import Storage
from shardline.components.common.workers import WorkerContext
from shardline.components.training.checkpoint import catalog
from shardline.components.training.checkpoint.catalog import CheckpointRecord, Damage
from shardline.components.training.checkpoint.store import Folder, Reader, TensorLoadPlanner, gone


def load(tensors: dict[str, Tensor], *, folder: Folder, record: CheckpointRecord) -> None:
    """Fill `tensors` in place from a verified checkpoint in `folder`. All ranks call it together, and all return or
    raise.

    Raises:
        UserError: it holds another model: other tensors, or tensors of other shapes.
        DamagedData: it does not hold what the index says, or was removed meanwhile.
    """

    def read_index() -> bytes:
        try:
            return folder.read(record.index)
        except FileNotFoundError as error:
            raise gone(folder.url_of(record.index)) from error

    data = together(read_index, rank=dist.get_rank() if dist.is_initialized() else 0)
    reader = Reader(folder, index=record.index, data=data, files=record.files)
    try:
        with _alone_or_together() as no_dist:
            dcp.load(tensors, storage_reader=reader, planner=TensorLoadPlanner(where=folder.url), no_dist=no_dist)
    except CheckpointException as error:
        raise _first_failure(error, folder.url) from error


def load_newest(
    context: WorkerContext, *, load: Callable[[CheckpointRecord], None], events: EventLog | None
) -> CheckpointRecord | None:
    """`load` the newest sound checkpoint, as `newest_sound` finds it; one that is damaged after all is put aside, too.

    All ranks call it together.

    Raises:
        DamagedData: there were checkpoints, and none of them could be loaded.
    """
    reasons: list[str] = []
    while (record := newest_sound(context, events=events, before=reasons)) is not None:
        try:
            load(record)
        except DamagedData as error:
            # The same on every rank.
            reasons.append(str(error))
            _put_aside(context, record.folder, str(error), events=events)
        else:
            return record
    return None


def newest_sound(
    context: WorkerContext, *, events: EventLog | None, before: list[str] | None = None
) -> CheckpointRecord | None:
    """The checkpoint to go on from, with every file's hash verified; None when the run has none.

    A damaged one is named in an event and put aside, and the one before is taken. All ranks call it together and get
    the same answer; each verifies its share of the files.

    Args:
        events: rank 0's log.
        before: what is known to be wrong with checkpoints that were put aside.

    Raises:
        DamagedData: there were checkpoints, and none of them is sound.
        EnvironmentLacking: a rank does not see the files that rank 0 sees.
    """
    run, reasons = context.run, list(before or ())

    def found() -> list[CheckpointRecord]:
        records = catalog.committed(run, on_damage=lambda *damaged: _move_aside(context, *damaged, events=events))
        if events:
            for folder in catalog.unfinished(run, records):
                reason = f"{run.url_of(folder)}: a save or a removal did not come to its end; nothing in it counts"
                events.emit("checkpoint.unfinished", {"folder": folder}, reason=reason)
        return records

    for record in together(found, rank=context.rank):
        damage = _first_damage(context, record)
        if damage is None:
            return record  # type: ignore[no-any-return]
        reasons.append(damage.reason)
        _put_aside(context, record.folder, damage.reason, events=events)
    # Never a silent start from nothing.
    told = "; ".join(reasons) or together(lambda: _trace(run), rank=context.rank)
    if told:
        raise DamagedData(
            f"no checkpoint is sound: {told}",
            where=run.url_of(catalog.FOLDER),
            hint=f"bring the files back; or start the run anew, under another name or without {catalog.FOLDER}/",
        )
    return None


def _trace(run: Storage) -> str | None:
    """What tells that the run had a checkpoint, though none counts: one that was put aside earlier, or the pointer."""
    if aside := catalog.damaged(run):
        return f"{', '.join(aside)} {'was' if len(aside) == 1 else 'were'} put aside as damaged"
    latest = catalog.latest_step(run)
    if latest is not None:
        return f"{catalog.LATEST_FILE} names that of step {latest}, and nothing is there that counts"
    return None


def _put_aside(context: WorkerContext, folder: str, reason: str, *, events: EventLog | None) -> None:
    together(lambda: _move_aside(context, folder, reason, events=events), rank=context.rank)


def _move_aside(context: WorkerContext, folder: str, reason: str, *, events: EventLog | None) -> None:
    # Somebody may have removed all of it, which is then the reason.
    with contextlib.suppress(FileNotFoundError):
        catalog.put_aside(context.run, folder, generation=context.generation, mark="damaged")
    if events:
        events.emit("checkpoint.damaged", {"folder": folder}, reason=reason)


def _first_damage(context: WorkerContext, record: CheckpointRecord) -> Damage | None:
    """What the ranks find wrong with `record`, the same on every rank."""
    mine = catalog.damage(context.run, record, rank=context.rank, world=context.world)
    if not dist.is_initialized():
        return mine
    found: list[Damage | None] = [None] * context.world
    dist.all_gather_object(found, mine)
    rank, damage = next(((rank, each) for rank, each in enumerate(found) if each is not None), (0, None))
    if damage is None or rank == 0:
        return damage
    # Rank 0 puts checkpoints aside: it must see the damage itself.
    seen = together(lambda: next(catalog.damages(context.run, record, only=[damage.file]), None), rank=context.rank)
    if seen is None:
        raise EnvironmentLacking(
            f"rank {rank} finds {damage.reason}, and rank 0 finds it whole",
            where=context.run.url_of(catalog.FOLDER),
            hint="name a storage that is the same for all machines of the run",
        )
    return damage


@contextlib.contextmanager
def _alone_or_together() -> Iterator[bool]:
    """Whether this process has no group to work with, which torch would warn of each time."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        yield not dist.is_initialized()


def together(action: Callable[[], Any], *, rank: int) -> Any:
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


def _first_failure(error: CheckpointException, where: str) -> BaseException:
    """What to raise for what torch collected from the ranks: an error of ours, or the first one as it is."""
    failures = [failure for _, (failure, _trace) in sorted(error.failures.items())]
    found = next((failure for failure in failures if isinstance(failure, ShardlineError)), failures[0])
    return StorageLost(f"storage failed: {found}", where=where) if isinstance(found, OSError) else found
