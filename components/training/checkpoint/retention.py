"""Which checkpoints stay: the newest few, every n-th, the best, those that are pinned.

Called by training after each commit and by `shardline checkpoint prune`, both under the run's lease, so that nobody
resumes or evaluates meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from shardline.components.common.config.training_schema import Keep
from shardline.components.common.events import EventLog
from shardline.components.common.owner import hold
from shardline.components.common.storage import Storage
from shardline.components.training.checkpoint import catalog
from shardline.components.training.checkpoint.record import CheckpointRecord


def expendable(records: Sequence[CheckpointRecord], keep: Keep) -> list[CheckpointRecord]:
    """Those of `records` that no rule of `keep` holds, oldest first. Pure.

    Args:
        records: the one to go on from first, as `catalog.committed` gives them.
    """
    held = {record.step for record in records[: keep.last]}
    if keep.every:
        held |= {record.step for record in records if record.step % keep.every == 0}
    if keep.best:
        known = [record for record in records if isinstance(record.state.get("loss"), int | float)]
        # Of equal ones the later.
        ranked = sorted(known, key=lambda record: (record.state["loss"], -record.step))
        held |= {record.step for record in ranked[: keep.best]}
    return [record for record in reversed(records) if record.step not in held]


def prunable(run: Storage, keep: Keep) -> list[CheckpointRecord]:
    """What `keep` would remove from `run`: neither what is pinned, nor the newest whose files are all sound."""
    records = catalog.committed(run)
    found = [record for record in expendable(records, keep) if not catalog.is_pinned(run, record)]
    if not found:
        return []
    # A newer one that is damaged is no reason to remove the one that training would then go on from. The newest is
    # sound as a rule, so that this reads one checkpoint.
    sound = next((record.step for record in records if catalog.damage(run, record) is None), None)
    return [record for record in found if record.step != sound]


def prune(run: Storage, keep: Keep, *, newest: CheckpointRecord, check: Callable[[], None]) -> Iterator[int]:
    """Remove what `keep` holds no longer; yields the step of each that is gone.

    Args:
        newest: the checkpoint that was committed a moment ago: its bytes need not be read back.
        check: raises Superseded when this process may no longer write the run.
    """
    for record in expendable(catalog.committed(run), keep):
        if record.step != newest.step and not catalog.is_pinned(run, record):
            check()
            catalog.remove(run, record)
            yield record.step


def prune_now(run: Storage, keep: Keep, *, dry_run: bool) -> list[dict[str, Any]]:
    """Remove from a run that nobody writes what `keep` does not hold, and what was left half-done.

    Args:
        dry_run: only say what would go.

    Returns:
        For each: `folder`, `step` (None where it is not known), `bytes`, and `why`.

    Raises:
        UserError: a live process owns the run.
    """
    if dry_run:
        return _going(run, keep)
    with hold(run) as lease:
        found = _going(run, keep)
        records = {record.folder: record for record in catalog.committed(run)}
        with EventLog(run, generation=lease.next_generation(), writer="prune") as events:
            for each in found:
                lease.check()
                if each["folder"] in records:
                    catalog.remove(run, records[each["folder"]])
                    events.emit("checkpoint.pruned", {"step": each["step"]}, reason=f"asked for, keeping {keep}")
                else:
                    run.delete_tree(each["folder"])
        return found


def _going(run: Storage, keep: Keep) -> list[dict[str, Any]]:
    records = prunable(run, keep)
    left = catalog.unfinished(run, catalog.committed(run))
    found = [
        {"folder": record.folder, "step": record.step, "bytes": record.bytes, "why": "no rule keeps it"}
        for record in records
    ]
    return found + [
        {
            "folder": folder,
            "step": None,
            "bytes": sum(run.size(f"{folder}/{name}") for name in run.names(folder)),
            "why": "a save or a removal that did not come to its end",
        }
        for folder in left
    ]
