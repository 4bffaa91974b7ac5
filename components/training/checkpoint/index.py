"""A checkpoint's index as JSON, and as the metadata that torch's distributed checkpoint plans with. Pure.

The index lists each tensor with its dtype, its shape and its chunks: which box of the tensor lies in which file, and
from which byte on. Nothing in it can run: torch's own metadata file is a pickle, so it is neither written nor read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from shardline.components.common.errors import DamagedData

INDEX_VERSION = 1
_DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int64": torch.int64,
    "int32": torch.int32,
    "uint8": torch.uint8,
    "bool": torch.bool,
}
#: The names of dtypes in a safetensors header.
SAFETENSORS_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


@dataclass(frozen=True)
class Place:
    """Where a chunk lies: `bytes` bytes of `file` from byte `begin` on."""

    file: str
    begin: int
    bytes: int


def encode(metadata: Metadata, places: dict[MetadataIndex, Place]) -> bytes:
    """The index of what was planned in `metadata` and written at `places`."""
    tensors: dict[str, Any] = {}
    for name, described in metadata.state_dict_metadata.items():
        if not isinstance(described, TensorStorageMetadata):
            raise TypeError(f"{name} is not a tensor; checkpoints hold tensors only")
        chunks = []
        for chunk in described.chunks:
            place = places[MetadataIndex(name, chunk.offsets)]
            chunks.append(
                {
                    "offsets": list(chunk.offsets),
                    "sizes": list(chunk.sizes),
                    "file": place.file,
                    "begin": place.begin,
                    "bytes": place.bytes,
                }
            )
        dtype = str(described.properties.dtype).removeprefix("torch.")
        tensors[name] = {"dtype": dtype, "shape": list(described.size), "chunks": chunks}
    return json.dumps({"version": INDEX_VERSION, "tensors": tensors}).encode()


def decode(data: bytes, *, where: str) -> tuple[Metadata, dict[MetadataIndex, Place]]:
    """The reverse of `encode`.

    Raises:
        DamagedData: it is not an index of a version that this code knows.
    """
    try:
        content = json.loads(data)
        version = content["version"]
        if version != INDEX_VERSION:
            raise DamagedData(
                f"is of version {version}; this shardline reads version {INDEX_VERSION}", where=where, hint="upgrade it"
            )
        described: dict[str, Any] = {}
        places: dict[MetadataIndex, Place] = {}
        for name, tensor in content["tensors"].items():
            chunks = []
            for chunk in tensor["chunks"]:
                offsets, sizes = torch.Size(chunk["offsets"]), torch.Size(chunk["sizes"])
                chunks.append(ChunkStorageMetadata(offsets=offsets, sizes=sizes))
                places[MetadataIndex(name, offsets)] = _place(chunk)
            if sum(prod(chunk.sizes) for chunk in chunks) != prod(tensor["shape"]):
                raise ValueError(f"the chunks of {name} are not all of it")
            properties = TensorProperties(dtype=_DTYPES[tensor["dtype"]])
            described[name] = TensorStorageMetadata(
                properties=properties, size=torch.Size(tensor["shape"]), chunks=chunks
            )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedData(f"is not a checkpoint index ({error})", where=where) from error
    return Metadata(state_dict_metadata=described), places


def _place(chunk: dict[str, Any]) -> Place:
    place = Place(chunk["file"], chunk["begin"], chunk["bytes"])
    if not (isinstance(place.file, str) and type(place.begin) is type(place.bytes) is int and place.begin >= 0):
        raise ValueError(f"{chunk} is no place in a file")
    return place
