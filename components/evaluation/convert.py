"""A checkpoint for other tools: as a Hugging Face folder, or as one safetensors file.

Called by the evaluation step for the run's `model/`, and by the command line for another checkpoint or another place.
The checkpoint stays as it is; every file's hash is verified first.
"""

from __future__ import annotations

from typing import Any

from shardline.components.common.config import RunConfig
from shardline.components.common.errors import UserError
from shardline.components.common.huggingface.names import parameter_shapes
from shardline.components.common.runfolder import read_config
from shardline.components.common.storage import Storage, join
from shardline.components.evaluation import export
from shardline.components.sharding.dataset import Dataset
from shardline.components.sharding.step import find_dataset
from shardline.components.training.checkpoint.catalog import CheckpointRecord
from shardline.components.training.checkpoint.whole import Stored

SUFFIX = ".safetensors"
#: Of the parameters' names in a checkpoint.
PREFIX = "model."
#: Why there is no Hugging Face folder of a model of one's own.
NO_FORM = "Hugging Face's Llama has no form for a model.class"


def convert(
    run: Storage, record: CheckpointRecord, *, target: str, shard_bytes: int = export.SHARD_BYTES
) -> dict[str, Any]:
    """Write the model of `record` to `target`; returns what was written. A piece of it is held in memory at a time.

    Args:
        target: the URL of one file, when it ends in `.safetensors`, with our names and the types it was saved in; else
            that of a Hugging Face folder.
        shard_bytes: weights beyond this go into several files of such a folder.

    Raises:
        UserError: something is there already, or the run's data set is gone.
        DamagedData: the checkpoint is not what was written.
    """
    source = source_of(record)
    if target.endswith(SUFFIX):
        return {"format": "safetensors", **_to_file(run, record, target), **source}
    return {"format": "huggingface", **_to_folder(run, record, target, shard_bytes), **source}


def source_of(record: CheckpointRecord) -> dict[str, Any]:
    """What an export says it was made from."""
    return {"checkpoint": record.folder, "generation": record.generation}


def write_model(
    folder: Storage,
    run: Storage,
    record: CheckpointRecord,
    *,
    config: RunConfig,
    data: Dataset,
    shard_bytes: int = export.SHARD_BYTES,
) -> dict[str, Any]:
    """Export the model of `record`, which a run of `config` trained on `data`, with its tokenizer, as `export` does.

    Raises:
        UserError: it is a model of another shape.
        DamagedData: the checkpoint is not what was written.
    """
    shape = config.model.shape(data.manifest.vocab)
    weights = Stored(run, record, prefix=PREFIX)
    weights.expect(parameter_shapes(shape))
    return export.export(
        folder,
        weights=weights,
        shape=shape,
        dtype=export.export_type(config.training.precision),
        tokenizer=data.tokenizer_json(),
        end_of_text=config.tokenizer.end_of_text,
        temperature=config.evaluation.temperature,
        source=source_of(record),
        shard_bytes=shard_bytes,
    )


def _to_file(run: Storage, record: CheckpointRecord, target: str) -> dict[str, Any]:
    parent, _, name = target.rpartition("/")
    folder = Storage(parent or ".")
    if folder.exists(name):
        raise _occupied(target)
    weights = Stored(run, record, prefix=PREFIX)
    chosen = {each: (each, weights.dtype(each)) for each in weights.shapes}
    size = export.write_file(folder, name, weights, chosen)["size"]
    return {"url": join(folder.url, name), "files": 1, "bytes": size, "tensors": len(chosen)}


def _to_folder(run: Storage, record: CheckpointRecord, target: str, shard_bytes: int) -> dict[str, Any]:
    folder = Storage(target)
    if folder.names() and not export.is_exported(folder, source=source_of(record)):
        raise _occupied(target)
    config = read_config(run)
    if config.model.class_:
        raise UserError(
            f"{NO_FORM} ({config.model.class_})",
            where=target,
            hint=f"name a file that ends in {SUFFIX}: it has the tensors under the names of that class",
        )
    data = find_dataset(config)
    files = write_model(folder, run, record, config=config, data=data, shard_bytes=shard_bytes)["files"]
    size = sum(file["size"] for file in files.values())
    tensors = len(parameter_shapes(config.model.shape(data.manifest.vocab)))
    return {"url": folder.url, "files": len(files), "bytes": size, "tensors": tensors}


def _occupied(target: str) -> UserError:
    return UserError("something is there already", where=target, hint="name another place, or remove it first")
