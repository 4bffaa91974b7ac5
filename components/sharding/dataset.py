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
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from shardline.components.common.errors import DamagedData
from shardline.components.common.storage import Storage
from shardline.components.sharding import manifest as names
from shardline.components.sharding.blocks import Blocks, Tokens
from shardline.components.sharding.cache import NodeCache, open_cache
from shardline.components.sharding.manifest import Manifest, SplitFacts, read_manifest
from shardline.components.sharding.order import DataPolicy, Geometry, SampleOrder
from shardline.components.sharding.pages import NotPages
from shardline.components.sharding.rowgroup import RowGroup, Shelf
from shardline.components.sharding.shardfile import (
    GROUP,
    Groups,
    Shard,
    checksum_of,
    decode_group,
    decode_tokens,
    hash_of,
    read_footer,
)
from shardline.components.sharding.tokenizer import Tokenizer

if TYPE_CHECKING:
    # The config's classes take longer to import than all the rest of a reader.
    from shardline.components.common.config.schema import Cache

SplitName = Literal["train", "held_out"]
_FOOTERS = 64


@dataclass(frozen=True, eq=False)
class TokenizedDocument:
    """A document as it was packed: its source's number, its file's there, its offset in that file, its tokens."""

    source: int
    file: int
    offset: int
    tokens: npt.NDArray[Any]


class Dataset:
    """An opened data set."""

    def __init__(self, storage: Storage, manifest: Manifest, index: Groups, *, cache: NodeCache | None = None) -> None:
        self.storage = storage
        self.manifest = manifest
        self.cache = cache
        self._index = index

    @staticmethod
    def open(storage: Storage, key: str, *, cache: Cache | None = None) -> Dataset:
        """The data set with that recipe key under the storage root.

        Args:
            cache: whether and where this node keeps its row groups; without it, it does not.
        """
        manifest = read_manifest(storage, key)
        index = np.frombuffer(_read_beside(storage, manifest, names.INDEX), GROUP)
        return Dataset(storage, manifest, index, cache=open_cache(cache, storage) if cache else None)

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
        return self.read_beside(names.TOKENIZER)

    def read_beside(self, name: str) -> bytes:
        """The content of a file beside the manifest."""
        return _read_beside(self.storage, self.manifest, name)

    def all_files(self) -> list[list[dict[str, Any]]]:
        """The corpus files of each source, by their numbers: url, size, stamp, format."""
        files: list[list[dict[str, Any]]] = json.loads(self.read_beside(names.FILES))
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
        group_bytes: of the tokens of a full row group.
    """

    def __init__(self, dataset: Dataset, facts: SplitFacts, index: Groups, first_shard: int) -> None:
        self.facts = facts
        self.blocks = facts.blocks
        self.groups = len(index)
        self.sequence = dataset.manifest.sequence
        self.dtype = np.dtype(dataset.manifest.dtype)
        self.geometry = Geometry([shard.blocks for shard in facts.shards], row_group=dataset.manifest.row_group)
        self.is_local = dataset.storage.is_local
        self.group_bytes = dataset.manifest.row_group * (self.sequence + 1) * self.dtype.itemsize
        self._storage = dataset.storage
        self._cache = dataset.cache
        self._row_group = dataset.manifest.row_group
        self._sources = dataset.manifest.sources
        self._index = index
        self._first_shard = first_shard
        self._footers: OrderedDict[str, pq.FileMetaData] = OrderedDict()
        self._lock = threading.Lock()
        self._shelf = Shelf()

    def stream(self, name: str) -> Geometry:
        """Where the blocks of a stream lie: of a source, or of several joined by "+".

        Raises:
            DamagedData: the data set has no such source.
        """
        wanted = set()
        for source in name.split("+"):
            if source not in self._sources:
                raise DamagedData(
                    f"has no source {source!r}; it has {', '.join(self._sources)}",
                    where=self._storage.url,
                    hint="run `shardline shard` with this config again",
                )
            wanted.add(self._sources.index(source))
        counts = np.array([shard.blocks for shard in self.facts.shards], np.int64)
        mine = np.array([shard.source in wanted for shard in self.facts.shards], bool)
        first = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])[:-1]
        return Geometry(counts[mine], row_group=self._row_group, first_blocks=first[mine])

    def order(self, policy: DataPolicy) -> SampleOrder:
        """The order of this split under a policy."""
        return SampleOrder({name: self.stream(name) for name in policy.streams}, policy)

    def read_group(self, group: int, *, into: memoryview | None = None) -> RowGroup:
        """The row group with that number, its bytes checked.

        Args:
            into: memory that its tokens may be decoded to, of `group_bytes`; it is theirs until they are dropped.

        Raises:
            DamagedData: its shard is missing, cut short, or has other bytes than were written.
        """
        if self._cache is None:
            return self._fetch_group(group, into)
        blocks = self._cache.blocks(
            self._identity(group),
            sequence=self.sequence,
            dtype=self.dtype,
            first=self.geometry.first_of(group),
            fetch=lambda: self._fetch_group(group).blocks(),
        )
        return _mapped(blocks)

    def _identity(self, group: int) -> str:
        """What the node cache knows a row group by: 32 hexadecimal digits.

        Its checksum alone would do for honest data; with its place, nobody can pass off another data set's as this one.
        """
        entry, shard = self._find(group)
        place = f"{self._storage.url_of(names.shard_path(shard.hash))} {self._number(group)} ".encode()
        return hash_of(place + entry["hash"].tobytes()).hex()

    def _fetch_group(self, group: int, into: memoryview | None = None) -> RowGroup:
        entry, shard = self._find(group)
        data = self._range(shard, int(entry["offset"]), int(entry["length"]))
        if checksum_of(data) != entry["hash"].tobytes():
            raise self._damaged(shard, f"row group {self._number(group)} is not what was written")
        try:
            tokens = decode_tokens(entry, data, sequence=self.sequence, dtype=self.dtype, codec=shard.codec, into=into)
        except NotPages as error:
            raise self._damaged(shard, f"row group {self._number(group)} cannot be read: {error}") from error
        # What follows the tokens is small, and wanted later or never.
        rest = self._shelf.keep(
            memoryview(data)[int(entry["tokens_offset"] + entry["tokens_length"]) - int(entry["offset"]) :]
        )
        return RowGroup(tokens, lambda tokens: self._blocks(group, tokens, rest))

    def _blocks(self, group: int, tokens: Tokens, rest: memoryview) -> Blocks:
        entry, shard = self._find(group)
        footer, number = self._footer(shard), self._number(group)
        offset = int(entry["offset"]) + int(entry["length"]) - len(rest)
        first = self.geometry.first_of(group)
        try:
            return decode_group(footer, number, size=shard.size, offset=offset, data=rest, tokens=tokens, first=first)
        except (pa.ArrowException, OSError, KeyError, ValueError) as error:
            raise self._damaged(shard, f"row group {number} cannot be read: {error}") from error

    def _find(self, group: int) -> tuple[np.void, Shard]:
        """A row group's entry in the index, and its shard."""
        entry = self._index[group]
        return entry, self.facts.shards[int(entry["shard"]) - self._first_shard]

    def _number(self, group: int) -> int:
        """The number of a row group within its shard."""
        return self.geometry.in_shard(group)[1]

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

    def groups_by_shard(self) -> list[Groups]:
        """The index entries of each shard's row groups."""
        ends = np.cumsum([shard.groups for shard in self.facts.shards])
        return np.split(self._index, ends[:-1]) if len(ends) else []

    def documents(self) -> Iterator[TokenizedDocument]:
        """All documents, in the order in which the blocks of their shard begin with them."""
        group = 0
        for shard in self.facts.shards:
            yield from self._documents_of_shard(shard.source, range(group, group + shard.groups))
            group += shard.groups

    def _documents_of_shard(self, source: int, groups: range) -> Iterator[TokenizedDocument]:
        found: dict[tuple[int, int], list[Tokens]] = {}
        for group in groups:
            blocks = self.read_group(group).blocks()
            for row in range(len(blocks)):
                # A block's last token is the next one's first, or ends the last document.
                tokens = blocks.tokens[row, : int(blocks.length[row]) - 1]
                entries = range(int(blocks.bounds[row]), int(blocks.bounds[row + 1]))
                edges = [*blocks.starts[entries.start : entries.stop].tolist(), len(tokens)]
                for at, entry in enumerate(entries):
                    place = (int(blocks.files[entry]), int(blocks.offsets[entry]))
                    found.setdefault(place, []).append(tokens[edges[at] : edges[at + 1]])
        for place, parts in found.items():
            yield TokenizedDocument(source, *place, np.concatenate(parts)[1:])


def _mapped(blocks: Blocks) -> RowGroup:
    """A row group from the node cache. All but the tokens is copied: it must not hold a file open for the tokens'."""
    columns = {each.name: getattr(blocks, each.name) for each in fields(blocks) if each.name != "tokens"}
    lean = {name: np.array(column) for name, column in columns.items()}
    return RowGroup(blocks.tokens, lambda tokens: Blocks(tokens=tokens, **lean))


def _read_beside(storage: Storage, manifest: Manifest, name: str) -> bytes:
    path = f"{names.folder(manifest.key)}/{name}"
    url = storage.url_of(path)
    hint = names.REPAIR.format("that file, if it is there,")
    try:
        data = storage.read(path)
    except FileNotFoundError:
        raise DamagedData("is missing from the data set", where=url, hint=hint) from None
    if hash_of(data) != bytes.fromhex(manifest.beside[name].hash):
        raise DamagedData("is not what was written", where=url, hint=hint)
    return data
