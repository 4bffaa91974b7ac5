"""A trained model as a Hugging Face Llama folder: weights, configuration and tokenizer, on any storage.

Called by the evaluation step. The folder counts as there once `export.json` is, which is written last and lists each
file with its size and SHA-256; it goes away first when another checkpoint is exported over it.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from shardline.components.common.config.presets import ModelShape
from shardline.components.common.huggingface import writing
from shardline.components.common.huggingface.names import exported_name
from shardline.components.common.huggingface.weights import INDEX, WEIGHTS
from shardline.components.common.runfolder import read_json, write_json
from shardline.components.common.storage import Storage

MARKER = "export.json"
SHARD_BYTES = 4 << 30
_CHUNK = 1 << 22
_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float32}


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
    weights: Mapping[str, Tensor],
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
        weights: our parameter names and values, of the whole model.
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
    folder: Storage, weights: Mapping[str, Tensor], *, dtype: torch.dtype, shard_bytes: int
) -> dict[str, dict[str, Any]]:
    sizes = {name: tensor.numel() * dtype.itemsize for name, tensor in weights.items()}
    groups = plan_shards(sizes, limit=shard_bytes)
    files: dict[str, dict[str, Any]] = {}
    placed: dict[str, str] = {}
    for number, group in enumerate(groups, start=1):
        alone = len(groups) == 1
        file = WEIGHTS if alone else f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        # Converted a file at a time: a whole second copy of a large model would not fit.
        converted = {exported_name(name): _plain(weights[name], dtype) for name in group}
        files[file] = _put_tensors(folder, file, converted)
        placed.update(dict.fromkeys(converted, file))
    if len(groups) > 1:
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": placed}
        content = _encode(index)
        folder.write(INDEX, content)
        files[INDEX] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    return files


def _encode(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def _plain(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    # Not a view of a larger storage: safetensors would refuse it.
    return tensor.detach().to("cpu", dtype).contiguous()


def _put_tensors(folder: Storage, file: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="shardline-export-") as scratch:
        path = Path(scratch) / file
        # Without the format mark, transformers refuses the file.
        save_file(tensors, path, metadata={"format": "pt"})
        digest = hashlib.sha256()
        with open(path, "rb") as handle:
            while chunk := handle.read(_CHUNK):
                digest.update(chunk)
        folder.put(path, file)
        return {"size": path.stat().st_size, "sha256": digest.hexdigest()}
