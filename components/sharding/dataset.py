"""A data set, opened to read: its splits, their row groups, their documents.

Called by the loader, evaluation and reports. Safe for several threads. What is read is checked: the manifest and the
index when the data set is opened, a row group and its shard's footer when they are read.

Errors: `UserError` when there is no such data set; `DamagedData` for anything that is not what was written, with the
URL of the file and what to do.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from shardline.components.common.errors import DamagedData
from shardline.components.common.storage import Storage
from shardline.components.sharding import manifest as names
from shardline.components.sharding.blocks import Blocks
from shardline.components.sharding.manifest import FileFacts, Manifest, SplitFacts, read_manifest
from shardline.components.sharding.order import Geometry
from shardline.components.sharding.shardfile import GROUP, Groups, Shard, decode_group, hash_of, read_footer
from shardline.components.sharding.tokenizer import Tokenizer

SplitName = Literal["train", "held_out"]
_FOOTERS = 64


@dataclass(frozen=True, eq=False)
class TokenizedDocument:
    """A document as it was packed: its file's number in `Dataset.files`, its offset there, its tokens."""

    file: int
    offset: int
    tokens: npt.NDArray[Any]


class Dataset:
    """An opened data set."""

    def __init__(self, storage: Storage, manifest: Manifest, index: Groups) -> None:
        self.storage = storage
        self.manifest = manifest
        self._index = index

    @staticmethod
    def open(storage: Storage, key: str) -> Dataset:
        """The data set with that recipe key under the storage root."""
        manifest = read_manifest(storage, key)
        data = _read_beside(storage, manifest, names.INDEX, manifest.index)
        return Dataset(storage, manifest, np.frombuffer(data, GROUP))

    def split(self, name: SplitName) -> Split:
        """One of the splits; `held_out` may have no block."""
        train = self.manifest.train
        facts: SplitFacts = train if name == "train" else self.manifest.held_out
        first = 0 if name == "train" else sum(shard.groups for shard in train.shards)
        count = sum(shard.groups for shard in facts.shards)
        first_shard = 0 if name == "train" else len(train.shards)
        return Split(self, facts, self._index[first : first + count], first_shard)

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that the data set was made with."""
        where = self.url_of(names.TOKENIZER)
        return Tokenizer(self.tokenizer_json(), end_of_text=self.manifest.end_of_text, where=where)

    def tokenizer_json(self) -> bytes:
        """The tokenizer's file, as it is."""
        return _read_beside(self.storage, self.manifest, names.TOKENIZER, self.manifest.tokenizer)

    def files(self) -> list[dict[str, Any]]:
        """The corpus files, by their numbers: url, size, stamp, format."""
        data = _read_beside(self.storage, self.manifest, names.FILES, self.manifest.files)
        files: list[dict[str, Any]] = json.loads(data)
        return files

    def url_of(self, name: str) -> str:
        return self.storage.url_of(f"{names.folder(self.manifest.key)}/{name}")

    def texts(self, name: SplitName) -> Iterator[str]:
        """The text of each document of a split, as it was before tokenising."""
        tokenizer = self.tokenizer()
        return (tokenizer.decode(document.tokens) for document in self.split(name).documents())


class Split:
    """The blocks of a split, by row groups.

    Attributes:
        blocks: how many there are; `groups`: how many row groups.
        sequence: tokens in a sample; a block has one more. `dtype`: of the tokens.
        geometry: what the order is computed from.
    """

    def __init__(self, dataset: Dataset, facts: SplitFacts, index: Groups, first_shard: int) -> None:
        self.facts = facts
        self.blocks = facts.blocks
        self.groups = len(index)
        self.sequence = dataset.manifest.sequence
        self.dtype = np.dtype(dataset.manifest.dtype)
        self.geometry = Geometry([shard.blocks for shard in facts.shards], row_group=dataset.manifest.row_group)
        self._storage = dataset.storage
        self._index = index
        self._first_shard = first_shard
        self._group_in_shard = np.arange(len(index)) - np.searchsorted(index["shard"], index["shard"])
        self._footers: OrderedDict[str, pq.FileMetaData] = OrderedDict()
        self._lock = threading.Lock()

    def read_group(self, group: int) -> Blocks:
        """The blocks of the row group with that number.

        Raises:
            DamagedData: its shard is missing, cut short, or has other bytes than were written.
        """
        entry = self._index[group]
        shard = self.facts.shards[int(entry["shard"]) - self._first_shard]
        number = int(self._group_in_shard[group])
        footer = self._footer(shard)
        offset, length = int(entry["offset"]), int(entry["length"])
        data = self._range(shard, offset, length)
        if hash_of(data) != entry["hash"].tobytes():
            raise self._damaged(shard, f"row group {number} is not what was written")
        try:
            return decode_group(
                footer, number, size=shard.size, offset=offset, data=data, first=self.geometry.first_of(group)
            )
        except (pa.ArrowException, OSError, KeyError, ValueError) as error:
            raise self._damaged(shard, f"row group {number} cannot be read: {error}") from error

    def _footer(self, shard: Shard) -> pq.FileMetaData:
        with self._lock:
            if shard.hash in self._footers:
                self._footers.move_to_end(shard.hash)
                return self._footers[shard.hash]
        length = shard.size - shard.footer
        # One byte more than there should be: a file that was appended to is none of ours either.
        data = self._range(shard, shard.footer, length, beyond=1)
        if hash_of(data) != bytes.fromhex(shard.footer_hash):
            raise self._damaged(shard, "its footer is not what was written")
        footer = read_footer(data)
        with self._lock:
            self._footers[shard.hash] = footer
            while len(self._footers) > _FOOTERS:
                self._footers.popitem(last=False)
        return footer

    def _range(self, shard: Shard, offset: int, length: int, *, beyond: int = 0) -> bytes:
        try:
            data = self._storage.read_range(names.shard_path(shard.hash), offset, length + beyond)
        except FileNotFoundError:
            raise self._damaged(shard, "the shard is missing") from None
        if len(data) < length:
            raise self._damaged(shard, f"the shard is cut short: it had {shard.size} bytes")
        if len(data) > length:
            raise self._damaged(shard, f"the shard is longer than the {shard.size} bytes that it had")
        return data

    def _damaged(self, shard: Shard, message: str) -> DamagedData:
        url = self._storage.url_of(names.shard_path(shard.hash))
        return DamagedData(message, where=url, hint=names.REPAIR.format("that file, if it is there,"))

    def documents(self) -> Iterator[TokenizedDocument]:
        """All documents in the order in which they were packed."""
        group = 0
        for shard in self.facts.shards:
            yield from self._documents_of_shard(range(group, group + shard.groups))
            group += shard.groups

    def _documents_of_shard(self, groups: range) -> Iterator[TokenizedDocument]:
        parts: list[npt.NDArray[Any]] = []
        place = (-1, -1)
        for group in groups:
            blocks = self.read_group(group)
            for row in range(len(blocks)):
                # A block's last token is the next one's first; the very last of a shard closes the last document.
                tokens = blocks.tokens[row, : int(blocks.length[row]) - 1]
                entries = range(int(blocks.bounds[row]), int(blocks.bounds[row + 1]))
                edges = [*blocks.starts[entries.start : entries.stop].tolist(), len(tokens)]
                for at, entry in enumerate(entries):
                    here = (int(blocks.files[entry]), int(blocks.offsets[entry]))
                    if here != place and parts:
                        yield TokenizedDocument(*place, np.concatenate(parts)[1:])
                        parts = []
                    place = here
                    parts.append(tokens[edges[at] : edges[at + 1]])
        if parts:
            yield TokenizedDocument(*place, np.concatenate(parts)[1:])


def _read_beside(storage: Storage, manifest: Manifest, name: str, facts: FileFacts) -> bytes:
    path = f"{names.folder(manifest.key)}/{name}"
    url = storage.url_of(path)
    hint = names.REPAIR.format("that file, if it is there,")
    try:
        data = storage.read(path)
    except FileNotFoundError:
        raise DamagedData("is missing from the data set", where=url, hint=hint) from None
    if hash_of(data) != bytes.fromhex(facts.hash):
        raise DamagedData("is not what was written", where=url, hint=hint)
    return data
