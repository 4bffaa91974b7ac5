"""One shard: a Parquet file of blocks. Written by the workers, read by `dataset`.

A row is a block and a row group is contiguous, so a reader fetches it with one ranged read. The file is described by
ranges that cover all of it: each row group's (from the end of the one before, the first from byte 0) and the footer's.
Their hashes are in the index and the manifest, so a changed byte anywhere is noticed by who reads it.

Columns: `tokens` FIXED_LEN_BYTE_ARRAY, the block's tokens as little-endian uint16 or uint32; `length`, `bytes`,
`source` int32; `doc_starts`, `doc_quiet`, `doc_files` list<int32>, `doc_offsets` list<int64>, as in `blocks.Blocks`.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from shardline.components.common.errors import EnvironmentLacking
from shardline.components.common.scratch import temporary_file
from shardline.components.common.storage import RangedFile
from shardline.components.sharding.blocks import Blocks, Tokens
from shardline.components.sharding.pages import values_of

#: A row group in the index. `offset`, `length`, `hash` (XXH3-128): its range; `tokens_*`: its chunk of tokens.
GROUP = np.dtype(
    [
        ("shard", "<u4"),
        ("rows", "<u4"),
        ("offset", "<u8"),
        ("length", "<u8"),
        ("tokens_offset", "<u8"),
        ("tokens_length", "<u8"),
        ("hash", "u1", (16,)),
    ]
)
Groups = npt.NDArray[np.void]

_FORMAT = "2"
#: All but the tokens.
_COLUMNS = ["length", "bytes", "source", "doc_starts", "doc_quiet", "doc_files", "doc_offsets"]


def hash_of(data: bytes | memoryview) -> bytes:
    """The hash that shards and other files are known by: blake2b-128."""
    return hashlib.blake2b(data, digest_size=16).digest()


def checksum_of(data: bytes | memoryview) -> bytes:
    """What a row group's range is held against whenever it is read: XXH3-128, as fast as memory.

    It tells of damage, not of malice: whoever can change a shard can change the index, too.
    """
    return xxhash.xxh3_128_digest(data)


@dataclass(frozen=True, kw_only=True)
class Shard:
    """A shard, named by the hash of its bytes.

    `source` is the number of its corpus source, `codec` its compression. `size` is in bytes, `groups` the number of row
    groups, `footer` the offset of all that follows the last one. Hashes are blake2b-128 in hexadecimal.
    """

    hash: str
    source: int
    codec: str
    size: int
    blocks: int
    groups: int
    footer: int
    footer_hash: str


class ShardWriter:
    """Writes blocks into a nameless temporary file, a row group a call; no more than that is in memory.

    Args:
        codec: as `sharding.codec`, but for auto: a name that Parquet has, with its level where it has levels.
        source: the number of the corpus source.
    """

    def __init__(self, *, sequence: int, dtype: npt.DTypeLike, codec: str, source: int = 0) -> None:
        self._file = temporary_file()
        self._sink = _HashingSink(self._file)
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._schema = _schema(sequence, self._dtype)
        self._codec, self._source = codec, source
        name, _, level = codec.partition(":")
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self._sink, mode="w"),
            self._schema,
            compression=name,
            compression_level=int(level) if level else None,
            use_dictionary=False,
            write_statistics=False,
            write_page_checksum=True,
            store_schema=False,
        )
        about = {"format": _FORMAT, "sequence": str(sequence), "dtype": np.dtype(dtype).name}
        self._writer.add_key_value_metadata({f"shardline.{name}": value for name, value in about.items()})
        self._blocks = 0

    def write(self, blocks: Blocks) -> None:
        """Append a row group."""
        self._writer.write_table(_table(blocks, self._schema, self._dtype), row_group_size=len(blocks))
        self._sink.end_range()
        self._blocks += len(blocks)

    def finish(self) -> tuple[Shard, Groups, IO[bytes]]:
        """End the file: what it is, its row groups, and the file itself at its start, there until `close`."""
        self._writer.close()
        self._file.flush()
        size = self._file.tell()
        groups, footer = _ranges(pq.read_metadata(self._file))
        if footer != self._sink.range_begin or len(groups) != len(self._sink.checksums):
            raise RuntimeError("Parquet's writer did not end each row group with the call that wrote it")
        for group, checksum in zip(groups, self._sink.checksums, strict=True):
            group["hash"] = np.frombuffer(checksum, np.uint8)
        self._file.seek(footer)
        rest = self._file.read()
        self._file.seek(0)
        shard = Shard(
            hash=self._sink.whole.hexdigest(),
            source=self._source,
            codec=self._codec,
            size=size,
            blocks=self._blocks,
            groups=len(groups),
            footer=footer,
            footer_hash=hash_of(rest).hex(),
        )
        return shard, groups, self._file

    def close(self) -> None:
        """Let go of the file; what was not finished is lost."""
        lost = (OSError, EnvironmentLacking, pa.ArrowException)
        with contextlib.suppress(*lost):
            self._writer.close()
        with contextlib.suppress(*lost):
            self._file.close()


class _HashingSink(io.RawIOBase):
    """Passes on what is written to `file`, and hashes it on its way: all of it, and range by range.

    Attributes:
        whole: the hash of all that was written.
        checksums: of the ranges that have ended; `range_begin`: where the one that has not begins.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.whole = hashlib.blake2b(digest_size=16)
        self.checksums: list[bytes] = []
        self.range_begin = 0
        self._range = xxhash.xxh3_128()

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._file.tell()

    def write(self, data: Any) -> int:
        self.whole.update(data)
        self._range.update(data)
        return self._file.write(data)

    def end_range(self) -> None:
        self.checksums.append(self._range.digest())
        self._range.reset()
        self.range_begin = self.tell()


def _schema(sequence: int, dtype: np.dtype[Any]) -> pa.Schema:
    def entries(kind: pa.DataType) -> pa.DataType:
        return pa.list_(pa.field("element", kind, nullable=False))

    fields = {
        "tokens": pa.binary((sequence + 1) * dtype.itemsize),
        "length": pa.int32(),
        "bytes": pa.int32(),
        "source": pa.int32(),
        "doc_starts": entries(pa.int32()),
        "doc_quiet": entries(pa.int32()),
        "doc_files": entries(pa.int32()),
        "doc_offsets": entries(pa.int64()),
    }
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in fields.items()])


def _table(blocks: Blocks, schema: pa.Schema, dtype: np.dtype[Any]) -> pa.Table:
    tokens = np.ascontiguousarray(blocks.tokens, dtype)
    bounds = _array(blocks.bounds.astype(np.int32))
    columns = [
        pa.FixedSizeBinaryArray.from_buffers(schema.field("tokens").type, len(blocks), [None, pa.py_buffer(tokens)]),
        _array(blocks.length),
        _array(blocks.bytes),
        _array(blocks.source),
    ]
    lists: dict[str, npt.NDArray[Any]] = {
        "doc_starts": blocks.starts,
        "doc_quiet": blocks.quiet,
        "doc_files": blocks.files,
        "doc_offsets": blocks.offsets,
    }
    columns += [pa.ListArray.from_arrays(bounds, _array(v), type=schema.field(k).type) for k, v in lists.items()]
    return pa.Table.from_arrays(columns, schema=schema)


def _array(values: npt.NDArray[Any]) -> pa.Array:
    """As `pa.array`, which imports pandas where that is installed: a second and 100 MB."""
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def _ranges(metadata: pq.FileMetaData) -> tuple[Groups, int]:
    groups = np.zeros(metadata.num_row_groups, GROUP)
    end = 0
    for number, group in enumerate(groups):
        row_group = metadata.row_group(number)
        chunks = [row_group.column(index) for index in range(row_group.num_columns)]
        group["rows"] = row_group.num_rows
        group["offset"] = end
        group["tokens_offset"] = chunks[0].data_page_offset
        group["tokens_length"] = chunks[0].total_compressed_size
        end = max(chunk.data_page_offset + chunk.total_compressed_size for chunk in chunks)
        group["length"] = end - int(group["offset"])
    return groups, end


def read_footer(data: bytes) -> pq.FileMetaData:
    """The metadata of a file, from the bytes that follow its last row group."""
    return pq.read_metadata(pa.BufferReader(data))


def decode_tokens(
    entry: np.void,
    data: bytes,
    *,
    sequence: int,
    dtype: npt.DTypeLike,
    codec: str,
    into: memoryview | None = None,
) -> Tokens:
    """The tokens of a row group, [rows, sequence + 1].

    Args:
        entry: of the index; data: the row group's range.
        codec: as in `Shard`.
        into: memory that they may be decoded to, of their size; it is theirs as long as they are used.

    Raises:
        NotPages: they are not there.
    """
    kind = np.dtype(dtype).newbyteorder("<")
    rows, start = int(entry["rows"]), int(entry["tokens_offset"]) - int(entry["offset"])
    chunk = memoryview(data)[start : start + int(entry["tokens_length"])]
    size = rows * (sequence + 1) * kind.itemsize
    values = values_of(chunk, codec=codec.partition(":")[0], size=size, into=into)
    return np.frombuffer(values, kind).reshape(rows, sequence + 1)


def decode_group(
    metadata: pq.FileMetaData,
    number: int,
    *,
    size: int,
    offset: int,
    data: bytes | memoryview,
    tokens: Tokens,
    first: int,
) -> Blocks:
    """The blocks of row group `number`.

    Args:
        size: of the file in bytes.
        offset, data: the row group's range.
        tokens: as from `decode_tokens`.
        first: the number, within its split, of its first block.
    """
    source = pq.ParquetFile(_part(size, offset, data), metadata=metadata)
    table = source.read_row_group(number, columns=_COLUMNS, use_threads=False).combine_chunks()

    def numbers(name: str) -> npt.NDArray[Any]:
        return np.asarray(table.column(name).chunk(0))

    def entries(name: str) -> npt.NDArray[Any]:
        return np.asarray(table.column(name).chunk(0).flatten())

    return Blocks(
        numbers=np.arange(first, first + table.num_rows, dtype=np.int64),
        tokens=tokens,
        length=numbers("length"),
        bytes=numbers("bytes"),
        source=numbers("source"),
        bounds=np.asarray(table.column("doc_starts").chunk(0).offsets).astype(np.int64),
        starts=entries("doc_starts"),
        quiet=entries("doc_quiet"),
        files=entries("doc_files"),
        offsets=entries("doc_offsets"),
    )


def _part(size: int, offset: int, data: bytes | memoryview) -> RangedFile:
    """A file of which only one range is here, for a reader that asks for nothing else."""

    def read_range(at: int, length: int) -> bytes:
        start = at - offset
        if start < 0 or start + length > len(data):
            raise OSError(f"bytes {at} to {at + length} are not in this part of the file")
        return bytes(data[start : start + length])

    return RangedFile(read_range, size)
