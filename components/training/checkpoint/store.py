"""torch's distributed checkpoint on `common.storage`: its planning, our files.

Called by `saving` and `whole`. Each rank writes one safetensors file, so that any other tool can read it, and hashes it
on the way. Files carry the generation in their name: an old rank that wakes up late cannot touch a newer one's.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from io import BytesIO
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem, SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from shardline.components.common.errors import DamagedData
from shardline.components.common.storage import Storage
from shardline.components.training.checkpoint.index import SAFETENSORS_DTYPES, Place, decode, encode


@dataclass(frozen=True)
class FileRecord:
    """A written file, as the commit record holds it."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class _Written:
    place: Place
    file: FileRecord


class TensorSavePlanner(DefaultSavePlanner):
    """Plans tensors and refuses all else: other state is JSON in the commit record."""

    def create_local_plan(self) -> SavePlan:
        strangers = [name for name, value in self.state_dict.items() if not isinstance(value, Tensor)]
        if strangers:
            raise TypeError(f"only tensors go into a checkpoint; not {', '.join(strangers)}")
        return super().create_local_plan()


class TensorLoadPlanner(DefaultLoadPlanner):
    """Loads tensors and refuses bytes, which torch would unpickle."""

    def load_bytes(self, read_item: ReadItem, value: BytesIO) -> None:
        raise DamagedData(f"{read_item.dest_index.fqn} is not a tensor; a checkpoint holds tensors only")


class Writer(StorageWriter):
    """Writes this rank's chunks into `folder/{prefix}-{rank:05d}.safetensors`, and on the coordinator the index."""

    def __init__(self, folder: Storage, *, prefix: str, rank: int) -> None:
        self._folder = folder
        self._prefix = prefix
        self._rank = rank
        #: Filled on the coordinator by `finish`: every file of the checkpoint.
        self.files: list[FileRecord] = []

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self.files = []

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        future: Future[list[WriteResult]] = Future()
        future.set_result(self._write(plan.items, planner) if plan.items else [])
        return future

    def _write(self, items: list[WriteItem], planner: SavePlanner) -> list[WriteResult]:
        name = f"{self._prefix}-{self._rank:05d}.safetensors"
        header, ends = _header(items)
        digest, size = hashlib.sha256(), 0
        with self._folder.writer(name) as handle:
            for part in (len(header).to_bytes(8, "little"), header):
                handle.write(part)
                digest.update(part)
                size += len(part)
            first = size
            for item in items:
                # One tensor at a time, so that no more than one is held twice.
                data = _bytes_of(planner.resolve_data(item))
                handle.write(data)
                digest.update(data)
                size += len(data)
        record = FileRecord(name, size, digest.hexdigest())
        begins = [first, *(first + end for end in ends[:-1])]
        return [
            WriteResult(item.index, first + end - begin, _Written(Place(name, begin, first + end - begin), record))
            for item, begin, end in zip(items, begins, ends, strict=True)
        ]

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        places: dict[MetadataIndex, Place] = {}
        files: dict[str, FileRecord] = {}
        for result in (result for of_rank in results for result in of_rank):
            places[MetadataIndex(result.index.fqn, result.index.offset)] = result.storage_data.place
            files[result.storage_data.file.name] = result.storage_data.file
        index = encode(metadata, places)
        index_file = FileRecord(f"{self._prefix}-index.json", len(index), hashlib.sha256(index).hexdigest())
        self._folder.write(index_file.name, index)
        self.files = [index_file, *files.values()]

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True


class Reader(StorageReader):
    """Reads chunks by ranges. What it reads was verified before, by the hashes in the commit record."""

    def __init__(self, folder: Storage, *, index: str) -> None:
        self._folder = folder
        self._index = index
        self._places: dict[MetadataIndex, Place] = {}
        self._metadata = Metadata({})

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        pass

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        where = self._folder.url_of(self._index)
        self._metadata, self._places = decode(self._folder.read(self._index), where=where)
        return self._metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        for item in plan.items:
            target = planner.resolve_tensor(item).detach()
            target.copy_(self._read_box(item))
            planner.commit_tensor(item, target)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _read_box(self, item: ReadItem) -> Tensor:
        """The part of a chunk that `item` asks for; only the rows it needs are fetched."""
        key = MetadataIndex(item.storage_index.fqn, item.storage_index.offset)
        described: Any = self._metadata.state_dict_metadata[key.fqn]
        sizes = next(chunk.sizes for chunk in described.chunks if chunk.offsets == key.offset)
        place, dtype = self._places[key], described.properties.dtype
        if not sizes:
            return _tensor(self._folder.read_range(place.file, place.begin, place.bytes), dtype, ())
        row = prod(sizes[1:]) * dtype.itemsize
        first, count = item.storage_offsets[0], item.lengths[0]
        data = self._folder.read_range(place.file, place.begin + first * row, count * row)
        box = _tensor(data, dtype, (count, *sizes[1:]))
        for dimension in range(1, len(sizes)):
            box = box.narrow(dimension, item.storage_offsets[dimension], item.lengths[dimension])
        return box

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True


def _header(items: list[WriteItem]) -> tuple[bytes, list[int]]:
    """A safetensors header for the chunks of `items`, and where each one's data ends after it."""
    entries: dict[str, Any] = {}
    ends: list[int] = []
    end = 0
    for item in items:
        if item.tensor_data is None:
            raise TypeError(f"{item.index.fqn} is not a tensor; checkpoints hold tensors only")
        dtype, sizes = item.tensor_data.properties.dtype, item.tensor_data.chunk.sizes
        begin, end = end, end + prod(sizes) * dtype.itemsize
        place = ",".join(str(offset) for offset in item.tensor_data.chunk.offsets)
        entries[f"{item.index.fqn}@{place}"] = {
            "dtype": SAFETENSORS_DTYPES[dtype],
            "shape": list(sizes),
            "data_offsets": [begin, end],
        }
        ends.append(end)
    header = json.dumps(entries).encode()
    return header + b" " * (-len(header) % 8), ends


def _bytes_of(tensor: Any) -> memoryview:
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return memoryview(flat.numpy())


def _tensor(data: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape) if data else torch.empty(shape, dtype=dtype)
