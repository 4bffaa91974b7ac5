"""The mean of several checkpoints, tensor by tensor and some rows at a time.

Called by `begin`. Parameters and the optimizer's moments alike are averaged in float64 and kept in the type they have.
Memory is bounded by `_BLOCK` bytes of each checkpoint, whatever the model's size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from shardline.components.common.errors import DamagedData, UserError
from shardline.components.common.storage import Storage
from shardline.components.training.checkpoint import catalog
from shardline.components.training.checkpoint.index import Place, encode
from shardline.components.training.checkpoint.planning import file_name, header_of, index_name, places_of
from shardline.components.training.checkpoint.store import FileRecord, Reader, write_bytes, write_tensors
from shardline.components.training.start.origins import Origin

#: Bytes of a tensor that are read from a checkpoint at once.
_BLOCK = 16 << 20
#: A file of the outcome holds so many bytes, or one tensor that has more.
_FILE = 4 << 30


def merge(
    origins: Sequence[Origin], *, folder: Storage, prefix: str, on_part: Callable[[int], None]
) -> tuple[list[FileRecord], str]:
    """Write the weighted mean of `origins` into `folder`; returns its files, and which of them is the index.

    Args:
        prefix: what the files' names begin with.
        on_part: told of so many bytes that are written; what it raises ends it.

    Raises:
        UserError: they are not of the same model, or can't be averaged.
        DamagedData: a file of one is not what was written.
    """
    readers = [_sound(origin) for origin in origins]
    tensors = _same_tensors(readers, origins)
    files: list[FileRecord] = []
    places: dict[MetadataIndex, Place] = {}
    for number, names in enumerate(_packed(tensors)):
        items = [_item(name, tensors[name]) for name in names]
        file = file_name(prefix, number)
        means = (block for name in names for block in _means(name, tensors[name], readers, origins, on_part=on_part))
        files.append(
            write_tensors(folder, file, header=header_of(items)[0], tensors=means, on_progress=lambda: on_part(0))
        )
        places.update(places_of(items, file))
    index = index_name(prefix)
    files.append(write_bytes(folder, index, encode(Metadata(state_dict_metadata=dict(tensors)), places)))
    return files, index


def _sound(origin: Origin) -> Reader:
    """A reader of a checkpoint whose every file was verified."""
    damage = catalog.damage(origin.run, origin.record)
    if damage is not None:
        raise DamagedData(damage.reason, hint="take another checkpoint")
    folder = origin.run.at(origin.record.folder)
    try:
        data = folder.read(origin.record.index)
    except FileNotFoundError:
        raise DamagedData("was removed while it was read", where=origin.url, hint="take another checkpoint") from None
    return Reader(folder, index=origin.record.index, data=data, files=origin.record.files)


def _same_tensors(readers: Sequence[Reader], origins: Sequence[Origin]) -> dict[str, TensorStorageMetadata]:
    """The tensors of all, each in one piece; refuses those that differ, naming the first."""
    first = _described(readers[0])
    for reader, origin in zip(readers[1:], origins[1:], strict=True):
        other = _described(reader)
        for name in sorted({*first, *other}):
            here, there = _shown(other.get(name)), _shown(first.get(name))
            if here != there:
                raise UserError(
                    f"{name} is {here} there, and {there} in {origins[0].url}",
                    where=origin.url,
                    hint="merge checkpoints of the same model and precision",
                )
    return {
        name: TensorStorageMetadata(
            properties=each.properties,
            size=each.size,
            chunks=[ChunkStorageMetadata(offsets=torch.Size([0] * len(each.size)), sizes=each.size)],
        )
        for name, each in sorted(first.items())
    }


def _described(reader: Reader) -> dict[str, Any]:
    return dict(reader.read_metadata().state_dict_metadata)


def _shown(described: Any) -> str:
    if described is None:
        return "not there"
    shape = " x ".join(map(str, described.size)) or "a number"
    return f"{shape} of {str(described.properties.dtype).removeprefix('torch.')}"


def _packed(tensors: dict[str, TensorStorageMetadata]) -> Iterator[list[str]]:
    """The names of the tensors of each file."""
    names: list[str] = []
    held = 0
    for name, each in tensors.items():
        size = prod(each.size) * each.properties.dtype.itemsize
        if names and held + size > _FILE:
            yield names
            names, held = [], 0
        names.append(name)
        held += size
    if names:
        yield names


def _item(name: str, each: TensorStorageMetadata) -> WriteItem:
    (chunk,) = each.chunks
    properties = TensorProperties(dtype=each.properties.dtype)
    return WriteItem(
        index=MetadataIndex(name, chunk.offsets),
        type=WriteItemType.TENSOR,
        tensor_data=TensorWriteData(chunk=chunk, properties=properties, size=each.size),
    )


def _means(
    name: str,
    each: TensorStorageMetadata,
    readers: Sequence[Reader],
    origins: Sequence[Origin],
    *,
    on_part: Callable[[int], None],
) -> Iterator[Tensor]:
    """The mean of one tensor, in blocks of rows."""
    rows = each.size[0] if each.size else 1
    row = max(1, prod(each.size[1:]) * each.properties.dtype.itemsize)
    at_once = max(1, _BLOCK // row)
    for first in range(0, rows, at_once):
        count = min(at_once, rows - first)
        blocks = (
            (_finite(reader.rows(name, first=first, count=count), name, origin), origin.named.weight)
            for reader, origin in zip(readers, origins, strict=True)
        )
        mean = _mean(blocks)
        if mean is None:
            raise UserError(
                f"{name} is {_shown(each)} and not the same in all: there is no mean of it", where=origins[0].url
            )
        yield mean
        on_part(mean.numel() * mean.element_size())


def _finite(block: Tensor, name: str, origin: Origin) -> Tensor:
    if not bool(block.isfinite().all()):
        raise UserError(f"{name} has numbers that are not finite", where=origin.url, hint="take another checkpoint")
    return block


def _mean(blocks: Iterable[tuple[Tensor, float]]) -> Tensor | None:
    """The weighted mean; None where numbers that are whole differ.

    As West, "Updating mean and variance estimates" (CACM 22, 1979), updates it: equal values stay as they are, bit by
    bit, and what is not negative does not become so.
    """
    mean: Tensor | None = None
    first, total = torch.empty(0), 0.0
    for block, weight in blocks:
        total += weight
        if mean is None:
            first, mean = block, block.double()
        elif not first.is_floating_point():
            if not torch.equal(first, block):
                return None
        else:
            mean += (block.double() - mean) * (weight / total)
    return None if mean is None else mean.to(first.dtype) if first.is_floating_point() else first
