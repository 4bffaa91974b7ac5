"""A look at a run's checkpoints: what there is, what is in one, whether it is what was written.

Called by the command line. Nothing here changes a file, and nothing needs torch, which takes seconds to import.
"""

from __future__ import annotations

import json
from math import prod
from typing import Any

from shardline.components.common.errors import DamagedData, UserError
from shardline.components.common.storage import Storage
from shardline.components.training.checkpoint import catalog
from shardline.components.training.checkpoint.catalog import CheckpointRecord

#: Of a number of each type that an index may name.
ITEM_BYTES = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "int64": 8,
    "int32": 4,
    "uint8": 1,
    "bool": 1,
}


def find(run: Storage, step: int | None) -> CheckpointRecord:
    """The checkpoint of optimizer step `step`, or the one to go on from.

    Raises:
        UserError: there is none.
    """
    records = catalog.committed(run)
    if not records:
        raise UserError("has no checkpoint yet", where=run.url)
    found = next((record for record in records if step in (None, record.step)), None)
    if found is None:
        steps = ", ".join(f"{record.step:,}" for record in records[:8])
        raise UserError(f"has no checkpoint of step {step:,}", where=run.url, hint=f"there are those of {steps}")
    return found


def listing(run: Storage) -> list[dict[str, Any]]:
    """Every checkpoint, the one to go on from first; then what is there and does not count, with the reason."""
    problems: dict[str, str] = {}
    records = catalog.committed(run, on_damage=problems.__setitem__)
    found = [{**summary(record), "pinned": catalog.is_pinned(run, record), "counts": True} for record in records]
    for folder in catalog.unfinished(run, records):
        problems[folder] = f"{run.url_of(folder)}: a save or a removal did not come to its end"
    for folder in catalog.folders(run):
        names = run.names(folder)
        aside = next((name for name in names if name.startswith("commit.") and name != catalog.COMMIT_FILE), None)
        if aside and catalog.COMMIT_FILE not in names:
            problems[folder] = f"{run.url_of(folder)}/{aside}: was put aside"
    return found + [{"folder": folder, "counts": False, "reason": why} for folder, why in sorted(problems.items())]


def summary(record: CheckpointRecord) -> dict[str, Any]:
    """A checkpoint without its tensors and its keys."""
    return {
        "step": record.step,
        "folder": record.folder,
        "generation": record.generation,
        "time": record.time or None,
        "bytes": record.bytes,
        "files": len(record.files),
        "loss": record.state.get("loss"),
        "tokens": record.state["tokens"],
        "layout": record.layout,
    }


def facts(run: Storage, record: CheckpointRecord) -> dict[str, Any]:
    """All that is known of a checkpoint: also its identity, its files, and each tensor's type, shape and bytes.

    Raises:
        DamagedData: its index is not what was written.
    """
    return {
        **summary(record),
        "version": record.version,
        "position": record.state["position"],
        "updates": record.state["updates"],
        "pinned": catalog.is_pinned(run, record),
        "identity": record.identity,
        "identity_keys": record.identity_keys,
        "file_list": record.files,
        "tensors": _tensors(run, record),
    }


def _tensors(run: Storage, record: CheckpointRecord) -> dict[str, dict[str, Any]]:
    for damage in catalog.damages(run, record, only=[record.index]):
        raise DamagedData(damage.reason)
    path = f"{record.folder}/{record.index}"
    try:
        entries = json.loads(run.read(path))["tensors"]
        return {name: _tensor(entry["dtype"], entry["shape"]) for name, entry in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedData(f"is not a checkpoint index ({error})", where=run.url_of(path)) from error


def _tensor(dtype: str, shape: list[int]) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "bytes": prod(shape) * ITEM_BYTES[dtype]}


def verify(run: Storage, step: int | None) -> tuple[list[CheckpointRecord], list[str]]:
    """The checkpoints whose every file was read, and what is wrong with them, each with the file's URL.

    Args:
        step: that of one checkpoint; None for all.

    Raises:
        UserError: there is none.
    """
    problems: list[str] = []
    if step is None:
        records = catalog.committed(run, on_damage=lambda _, reason: problems.append(reason))
        if not records and not problems:
            raise UserError("has no checkpoint yet", where=run.url)
    else:
        records = [find(run, step)]
    for record in records:
        problems += [damage.reason for damage in catalog.damages(run, record)]
    return records, problems
