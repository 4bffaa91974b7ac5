"""A checkpoint's files on `common.storage`: one safetensors file a rank, read through torch's distributed checkpoint.

Called by `saving` and `loading`. Any other tool can read the files too. Nothing that is read can run: the reader takes
ranges of bytes for numbers, and its planner refuses whatever torch would unpickle.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from math import prod
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributed.checkpoint import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from shardline.components.common.errors import DamagedData, UserError
from shardline.components.common.storage import Storage
from shardline.components.training.checkpoint.index import decode

_SHOWN = 3
#: Written and hashed at once, so that a sign of life can be given in between.
_CHUNK = 64 << 20


class Folder(Protocol):
    """Where a checkpoint's files are read: a `Storage`, or what is like one."""

    @property
    def url(self) -> str: ...

    def url_of(self, path: str) -> str: ...

    def read(self, path: str) -> bytes: ...

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]: ...


@dataclass(frozen=True)
class FileRecord:
    """A written file, as the commit record holds it."""

    name: str
    size: int
    sha256: str


def write_bytes(folder: Storage, name: str, data: bytes) -> FileRecord:
    folder.write(name, data)
    return FileRecord(name, len(data), hashlib.sha256(data).hexdigest())


def write_tensors(
    folder: Storage, name: str, *, header: bytes, tensors: Iterable[Tensor], on_progress: Callable[[], None]
) -> FileRecord:
    """Write `header` and the values of `tensors`, on any device, hashing on the way.

    Args:
        on_progress: called now and then while it writes; what it raises ends the writing.
    """
    digest, size = hashlib.sha256(header), len(header)
    with folder.writer(name) as handle:
        handle.write(header)
        for tensor in tensors:
            # One tensor at a time, so that no more than one is held twice.
            data = _bytes_of(tensor)
            for begin in range(0, len(data), _CHUNK):
                on_progress()
                part = data[begin : begin + _CHUNK]
                handle.write(part)
                digest.update(part)
            size += len(data)
    return FileRecord(name, size, digest.hexdigest())


class TensorLoadPlanner(DefaultLoadPlanner):
    """Loads tensors and refuses bytes, which torch would unpickle, and tensors of another model."""

    def __init__(self, *, where: str) -> None:
        super().__init__()
        self._where = where

    def create_local_plan(self) -> LoadPlan:
        if self.metadata is None:
            raise RuntimeError("a plan needs the checkpoint's metadata")
        saved = {name: getattr(entry, "size", None) for name, entry in self.metadata.state_dict_metadata.items()}
        check_shapes({name: tensor.size() for name, tensor in self.state_dict.items()}, saved, where=self._where)
        return super().create_local_plan()

    def load_bytes(self, read_item: ReadItem, value: BytesIO) -> None:
        raise DamagedData(f"{read_item.dest_index.fqn} is not a tensor; a checkpoint holds tensors only")


def check_shapes(
    wanted: Mapping[str, tuple[int, ...]], saved: Mapping[str, tuple[int, ...] | None], *, where: str
) -> None:
    """Raises UserError when the tensors that a checkpoint has are not all that is wanted of it."""
    wrong = [name for name, size in wanted.items() if saved.get(name) != size]
    if wrong:
        shown = [f"{name} should be {_shape(wanted[name])} and is {_shape(saved.get(name))}" for name in wrong[:_SHOWN]]
        more = f", and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise UserError(
            f"this checkpoint is of another model: {', '.join(shown)}{more}",
            where=where,
            hint="use the config and the tokenizer that it was saved with",
        )


def _shape(size: tuple[int, ...] | None) -> str:
    return "not there" if size is None else "x".join(map(str, size)) or "a number"


class Reader(StorageReader):
    """Reads chunks by ranges. What it reads was verified before, by the hashes in the commit record.

    Args:
        index: the index's name, and `data` its content.
        files: the names in the commit record: no other file is read, whatever the index says.

    Raises:
        DamagedData: the index is none, or names other files.
    """

    def __init__(self, folder: Folder, *, index: str, data: bytes, files: Collection[str]) -> None:
        self._folder = folder
        self._index = folder.url_of(index)
        self._metadata, self._places = decode(data, where=self._index)
        for place in self._places.values():
            if place.file not in files:
                raise DamagedData(f"names {place.file!r}, which is no file of this checkpoint", where=self._index)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        pass

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
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
        if not sizes:
            return self._rows_of(key, sizes, first=0, count=1)
        box = self._rows_of(key, sizes, first=item.storage_offsets[0], count=item.lengths[0])
        for dimension in range(1, len(sizes)):
            box = box.narrow(dimension, item.storage_offsets[dimension], item.lengths[dimension])
        return box

    def rows(self, name: str, *, first: int, count: int) -> Tensor:
        """`count` rows of a tensor from its row `first` on, wherever its chunks lie; a number is one row."""
        described: Any = self._metadata.state_dict_metadata[name]
        if not described.size:
            return self._rows_of(MetadataIndex(name, torch.Size(())), (), first=0, count=1)
        rows = torch.empty((count, *described.size[1:]), dtype=described.properties.dtype)
        for chunk in described.chunks:
            begin = max(first, chunk.offsets[0])
            end = min(first + count, chunk.offsets[0] + chunk.sizes[0])
            if begin < end:
                key = MetadataIndex(name, chunk.offsets)
                part = self._rows_of(key, chunk.sizes, first=begin - chunk.offsets[0], count=end - begin)
                sides = zip(chunk.offsets[1:], chunk.sizes[1:], strict=True)
                rows[(slice(begin - first, end - first), *(slice(at, at + size) for at, size in sides))] = part
        return rows

    def _rows_of(self, key: MetadataIndex, sizes: Sequence[int], *, first: int, count: int) -> Tensor:
        """Rows of one chunk, which has `sizes`; all of it where it is a number."""
        described: Any = self._metadata.state_dict_metadata[key.fqn]
        place, dtype = self._places[key], described.properties.dtype
        if place.bytes != prod(sizes) * dtype.itemsize:
            raise DamagedData(f"gives {key.fqn} {place.bytes} bytes, which is not its size", where=self._index)
        row = prod(sizes[1:]) * dtype.itemsize
        data = self._read(place.file, place.begin + first * row, count * row)
        return _tensor(data, dtype, (count, *sizes[1:]) if sizes else ())

    def _read(self, file: str, begin: int, count: int) -> bytes:
        try:
            return self._folder.read_ranges(file, [(begin, count)])[0]
        except FileNotFoundError as error:
            raise gone(self._folder.url_of(file)) from error

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True


def gone(where: str) -> DamagedData:
    return DamagedData("was removed while it was read", where=where, hint="take another checkpoint")


def _bytes_of(tensor: Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    array: Any = flat.numpy()
    return memoryview(array)


def _tensor(data: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape) if data else torch.empty(shape, dtype=dtype)
