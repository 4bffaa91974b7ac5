"""Small checkpoints of one process, as the tests of saving, of the catalog and of retention need them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from shardline.components.common.storage import Storage
from shardline.components.common.workers import WorkerContext
from shardline.components.training.checkpoint import catalog, loading
from shardline.components.training.checkpoint.catalog import CheckpointRecord
from shardline.components.training.checkpoint.saving import Contents, Saver
from shardline.components.training.checkpoint.whole import Stored

STATE = {"position": 8, "updates": 2, "tokens": 9}


def context(run: Storage, *, fence: int, generation: int = 1) -> WorkerContext:
    return WorkerContext(
        generation=generation,
        rank=0,
        world=1,
        local_rank=0,
        store=None,
        run=run,
        fence=fence,
        timeout=timedelta(seconds=10),
    )


def tensors(value: float) -> dict[str, torch.Tensor]:
    return {
        "model.a": torch.full((3, 4), value, dtype=torch.float64),
        "model.b": torch.arange(6, dtype=torch.bfloat16) + value,
        "optimizer.a.exp_avg": torch.tensor(value),
    }


def contents(step: int, **state: Any) -> Contents:
    return Contents(step=step, state={**STATE, **state}, identity="i", identity_keys={"model.dim": 4}, layout={"pp": 1})


def save(
    run: Storage, *, step: int, value: float, fence: int, generation: int = 1, background: bool = True, **state: Any
) -> CheckpointRecord:
    """Save as a generation of one process would; returns what was committed."""
    place = context(run, fence=fence, generation=generation)
    saved: list[CheckpointRecord] = []
    saver = Saver(
        place,
        tensors=lambda: tensors(value),
        background=background,
        on_saved=lambda done: saved.append(done.record),
    )
    saver.start(contents(step, **state))
    saver.wait()
    (record,) = saved
    return record


def loaded(run: Storage, record: CheckpointRecord) -> dict[str, torch.Tensor]:
    target = tensors(0.0)
    loading.load(target, folder=run.at(record.folder), record=record)
    return target


def stored(run: Storage, record: CheckpointRecord) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint, by their names in it."""
    found = Stored(run, record, prefix="")
    blocks = {name: list(found.blocks(name)) for name in found.shapes}
    return {name: torch.cat(parts) if found.shapes[name] else parts[0] for name, parts in blocks.items()}


def steps(run: Storage) -> list[int]:
    return [record.step for record in catalog.committed(run)]


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place % len(data)] ^= 1
    path.write_bytes(bytes(data))
