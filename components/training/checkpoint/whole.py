"""A whole model from a checkpoint, in one process and without a process group.

Called by the export and by text generation.
"""

from __future__ import annotations

import torch

from shardline.components.common.config.presets import ModelShape
from shardline.components.common.errors import DamagedData
from shardline.components.common.storage import Storage
from shardline.components.training.checkpoint import catalog, saving
from shardline.components.training.checkpoint.catalog import CheckpointRecord
from shardline.components.training.model import Transformer


def load_model(
    run: Storage, record: CheckpointRecord, shape: ModelShape, *, dtype: torch.dtype = torch.float32
) -> Transformer:
    """The model of `record`, on the CPU, every file's hash verified.

    Raises:
        DamagedData: a file is not what was written.
    """
    problem = catalog.damage(run, record)
    if problem is not None:
        raise DamagedData(problem, hint="evaluate another checkpoint, or train on: the one before is used")
    with torch.device("meta"):
        model = Transformer(shape).to(dtype)
    model.to_empty(device="cpu")
    saving.load({f"model.{name}": parameter for name, parameter in model.named_parameters()}, run=run, record=record)
    return model.eval()
