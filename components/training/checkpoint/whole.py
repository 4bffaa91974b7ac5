"""A whole model from a checkpoint, in one process and without a process group.

Called by the export, by text generation and by `shardline checkpoint convert`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from shardline.components.common.config.presets import ModelShape
from shardline.components.common.errors import DamagedData
from shardline.components.common.storage import Storage
from shardline.components.training.attention import WholeSamples
from shardline.components.training.checkpoint import catalog, loading
from shardline.components.training.checkpoint.catalog import CheckpointRecord
from shardline.components.training.checkpoint.index import decode
from shardline.components.training.classes import model_class


def load_model(
    run: Storage,
    record: CheckpointRecord,
    shape: ModelShape,
    *,
    named: str | None = None,
    dtype: torch.dtype = torch.float32,
) -> nn.Module:
    """The model of `record`, on the CPU, every file's hash verified.

    Args:
        named: the class of a model of one's own, as the config names it.

    Raises:
        DamagedData: a file is not what was written.
        UserError: it is a model of another shape, or there is no such class.
    """
    _verify(run, record)
    with torch.device("meta"):
        build = model_class(named)
        model = build(shape, layers=range(shape.layers), attend=WholeSamples(), recompute="none").to(dtype)
    model.to_empty(device="cpu")
    loading.load(
        {f"model.{name}": parameter for name, parameter in model.named_parameters()},
        folder=run.at(record.folder),
        record=record,
    )
    return model.eval()


def load_tensors(run: Storage, record: CheckpointRecord, *, prefix: str) -> dict[str, Tensor]:
    """The tensors of `record` whose names begin with `prefix`, under their names without it, in the types they have.

    Raises:
        DamagedData: a file is not what was written.
    """
    _verify(run, record)
    index = f"{record.folder}/{record.index}"
    described: dict[str, Any] = dict(decode(run.read(index), where=run.url_of(index))[0].state_dict_metadata)
    tensors = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in described.items()
        if name.startswith(prefix)
    }
    loading.load(tensors, folder=run.at(record.folder), record=record)
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}


def _verify(run: Storage, record: CheckpointRecord) -> None:
    problem = catalog.damage(run, record)
    if problem is not None:
        raise DamagedData(problem.reason, hint="take another checkpoint, or train on: the one before is used")
