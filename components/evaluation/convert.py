"""A checkpoint for other tools: as a Hugging Face folder, or as one safetensors file.

Called by the evaluation step for the run's `model/`, and by the command line for another checkpoint or another place.
The checkpoint stays as it is; every file's hash is verified first.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from shardline.components.common.config import RunConfig
from shardline.components.common.errors import UserError
from shardline.components.common.runfolder import read_config
from shardline.components.common.storage import Storage, join
from shardline.components.evaluation import export
from shardline.components.sharding.dataset import Dataset
from shardline.components.sharding.step import find_dataset
from shardline.components.training.checkpoint.catalog import CheckpointRecord
from shardline.components.training.checkpoint.whole import load_model, load_tensors

SUFFIX = ".safetensors"
#: Why there is no Hugging Face folder of a model of one's own.
NO_FORM = "Hugging Face's Llama has no form for a model.class"


def convert(run: Storage, record: CheckpointRecord, *, target: str) -> dict[str, Any]:
    """Write the model of `record` to `target`; returns what was written.

    Args:
        target: the URL of one file, when it ends in `.safetensors`, with our names and the types it was saved in; else
            that of a Hugging Face folder.

    Raises:
        UserError: something is there already, or the run's data set is gone.
        DamagedData: the checkpoint is not what was written.
    """
    source = source_of(record)
    if target.endswith(SUFFIX):
        return {"format": "safetensors", **_to_file(run, record, target), **source}
    return {"format": "huggingface", **_to_folder(run, record, target, source), **source}


def source_of(record: CheckpointRecord) -> dict[str, Any]:
    """What an export says it was made from."""
    return {"checkpoint": record.folder, "generation": record.generation}


def write_model(
    folder: Storage, model: nn.Module, *, config: RunConfig, data: Dataset, source: dict[str, Any]
) -> dict[str, Any]:
    """Export `model`, which a run of `config` trained on `data`, with its tokenizer; returns what `export` does."""
    return export.export(
        folder,
        weights=model.state_dict(),
        shape=config.model.shape(data.manifest.vocab),
        dtype=export.export_type(config.training.precision),
        tokenizer=data.tokenizer_json(),
        end_of_text=config.tokenizer.end_of_text,
        temperature=config.evaluation.temperature,
        source=source,
    )


def _to_file(run: Storage, record: CheckpointRecord, target: str) -> dict[str, Any]:
    parent, _, name = target.rpartition("/")
    folder = Storage(parent or ".")
    if folder.exists(name):
        raise _occupied(target)
    tensors = load_tensors(run, record, prefix="model.")
    with tempfile.TemporaryDirectory(prefix="shardline-convert-") as scratch:
        path = Path(scratch) / "model.safetensors"
        save_file(tensors, path, metadata={"format": "pt"})
        folder.put(path, name)
        return {"url": join(folder.url, name), "files": 1, "bytes": path.stat().st_size, "tensors": len(tensors)}


def _to_folder(run: Storage, record: CheckpointRecord, target: str, source: dict[str, Any]) -> dict[str, Any]:
    folder = Storage(target)
    if folder.names() and not export.is_exported(folder, source=source):
        raise _occupied(target)
    config = read_config(run)
    if config.model.class_:
        raise UserError(
            f"{NO_FORM} ({config.model.class_})",
            where=target,
            hint=f"name a file that ends in {SUFFIX}: it has the tensors under the names of that class",
        )
    data = find_dataset(config)
    model = load_model(run, record, config.model.shape(data.manifest.vocab), dtype=torch.float32)
    files = write_model(folder, model, config=config, data=data, source=source)["files"]
    size = sum(file["size"] for file in files.values())
    return {"url": folder.url, "files": len(files), "bytes": size, "tensors": len(model.state_dict())}


def _occupied(target: str) -> UserError:
    return UserError("something is there already", where=target, hint="name another place, or remove it first")
