"""A trained model as a Hugging Face Llama folder: weights, configuration and tokenizer, on any storage.

Called by the evaluation step. The folder counts as there once `export.json` is, which is written last and lists each
file with its size and SHA-256; it goes away first when another checkpoint is exported over it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, Protocol

import torch
from tokenizers import Tokenizer
from torch import Tensor

from shardline.components.common.config.presets import ModelShape
from shardline.components.common.huggingface import writing
from shardline.components.common.huggingface.names import exported_name
from shardline.components.common.huggingface.weights import INDEX, WEIGHTS
from shardline.components.common.huggingface.writing import weights_header
from shardline.components.common.runfolder import read_json, write_json
from shardline.components.common.storage import Storage
from shardline.components.training.checkpoint.index import SAFETENSORS_DTYPES
from shardline.components.training.checkpoint.store import write_tensors

MARKER = "export.json"
SHARD_BYTES = 4 << 30
_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float32, "float8": torch.bfloat16}


class Weights(Protocol):
    """A model's parameters, under our names, of which a piece at a time is held."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Of all of them, in the model's order."""
        ...

    def blocks(self, name: str) -> Iterator[Tensor]:
        """The values of one in order, in pieces."""
        ...


def export_type(precision: str) -> torch.dtype:
    """The type of exported weights: what the model computed in, or fp32 where that was fp64."""
    return _TYPES[precision]


def is_exported(folder: Storage, *, source: Mapping[str, Any]) -> bool:
    """Whether `folder` holds the whole export of `source`, each file with the size it was written with."""
    marker = read_json(folder, MARKER)
    if marker is None or marker["source"] != source:
        return False
    return all(folder.exists(name) and folder.size(name) == entry["size"] for name, entry in marker["files"].items())


def export(
    folder: Storage,
    *,
    weights: Weights,
    shape: ModelShape,
    dtype: torch.dtype,
    tokenizer: bytes,
    end_of_text: str,
    temperature: float,
    source: Mapping[str, Any],
    shard_bytes: int = SHARD_BYTES,
) -> dict[str, Any]:
    """Write the model into `folder`, in place of what was exported there before.

    Args:
        weights: of the whole model.
        dtype: the type to store them in.
        tokenizer: the content of tokenizer.json.
        temperature: the default for whoever generates with the model.
        source: what the model was made from; `is_exported` compares it.
        shard_bytes: weights beyond this go into several files with an index.

    Returns:
        The marker: `source` and `files`, name to size and SHA-256.
    """
    folder.delete(MARKER)
    for name in folder.names():
        if name.endswith(".safetensors") or name == INDEX:
            folder.delete(name)
    end_of_text_id = Tokenizer.from_str(tokenizer.decode()).token_to_id(end_of_text)
    files = _write_weights(folder, weights, dtype=dtype, shard_bytes=shard_bytes)
    small = {
        "config.json": writing.model_config(shape, dtype=str(dtype).removeprefix("torch."), end_of_text=end_of_text_id),
        "generation_config.json": writing.generation_config(end_of_text=end_of_text_id, temperature=temperature),
        "tokenizer_config.json": writing.tokenizer_config(
            end_of_text=end_of_text, end_of_text_id=end_of_text_id, max_positions=shape.max_positions
        ),
        "special_tokens_map.json": writing.special_tokens(end_of_text),
    }
    contents = {name: _encode(value) for name, value in small.items()}
    for name, content in {**contents, "tokenizer.json": tokenizer}.items():
        folder.write(name, content)
        files[name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    marker = {"source": dict(source), "files": files}
    write_json(folder, MARKER, marker)
    return marker


def plan_shards(sizes: Mapping[str, int], *, limit: int) -> list[list[str]]:
    """Names grouped, in order, so that no group is larger than `limit` bytes unless a single tensor is."""
    groups: list[list[str]] = []
    room = 0
    for name, size in sizes.items():
        if not groups or size > room:
            groups.append([])
            room = limit
        groups[-1].append(name)
        room -= size
    return groups


def _write_weights(
    folder: Storage, weights: Weights, *, dtype: torch.dtype, shard_bytes: int
) -> dict[str, dict[str, Any]]:
    sizes = {name: prod(shape) * dtype.itemsize for name, shape in weights.shapes.items()}
    groups = plan_shards(sizes, limit=shard_bytes)
    files: dict[str, dict[str, Any]] = {}
    placed: dict[str, str] = {}
    for number, group in enumerate(groups, start=1):
        alone = len(groups) == 1
        file = WEIGHTS if alone else f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        files[file] = write_file(folder, file, weights, {name: (exported_name(name), dtype) for name in group})
        placed.update({exported_name(name): file for name in group})
    if len(groups) > 1:
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": placed}
        content = _encode(index)
        folder.write(INDEX, content)
        files[INDEX] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    return files


def write_file(
    folder: Storage, file: str, weights: Weights, chosen: Mapping[str, tuple[str, torch.dtype]]
) -> dict[str, Any]:
    """Write some of `weights` into a safetensors file, which is there whole or not at all; returns its size and hash.

    Args:
        chosen: what each is called in the file, and the type to store it in.
    """
    # By name, as the safetensors package has it: the file depends on nothing else.
    ordered = sorted(chosen, key=lambda name: chosen[name][0])
    header = weights_header(
        {chosen[name][0]: (SAFETENSORS_DTYPES[chosen[name][1]], weights.shapes[name]) for name in ordered}
    )
    values = (block.to("cpu", chosen[name][1]) for name in ordered for block in weights.blocks(name))
    written = write_tensors(folder, file, header=header, tensors=values, on_progress=lambda: None)
    return {"size": written.size, "sha256": written.sha256}


def _encode(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
