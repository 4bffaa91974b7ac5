"""One shard: a Parquet file of blocks. Written by `shardwriter`, read by `dataset`.

A row is a block and a row group is contiguous, so a reader fetches it with one ranged read. The file is described by
ranges that cover all of it: each row group's (from the end of the one before, the first from byte 0) and the footer's.
Their hashes are in the index and the manifest, so a changed byte anywhere is noticed by who reads it.

Columns: `tokens` FIXED_LEN_BYTE_ARRAY, the block's tokens as little-endian uint16 or uint32; `length`, `bytes`,
`source` int32; `doc_starts`, `doc_quiet`, `doc_files` list<int32>, `doc_offsets` list<int64>, as in `blocks.Blocks`;
of a source with weights also `doc_weights` list<float>.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

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

#: All but the tokens.
_WEIGHTS = "doc_weights"
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
    weighted = _WEIGHTS in source.schema_arrow.names
    columns = [*_COLUMNS, _WEIGHTS] if weighted else _COLUMNS
    table = source.read_row_group(number, columns=columns, use_threads=False).combine_chunks()

    def numbers(name: str) -> npt.NDArray[Any]:
        return np.asarray(table.column(name).chunk(0))

    def entries(name: str) -> npt.NDArray[Any]:
        return np.asarray(table.column(name).chunk(0).flatten())

    starts = entries("doc_starts")
    return Blocks(
        numbers=np.arange(first, first + table.num_rows, dtype=np.int64),
        tokens=tokens,
        length=numbers("length"),
        bytes=numbers("bytes"),
        source=numbers("source"),
        bounds=np.asarray(table.column("doc_starts").chunk(0).offsets).astype(np.int64),
        starts=starts,
        quiet=entries("doc_quiet"),
        weights=entries(_WEIGHTS) if weighted else np.ones(len(starts), np.float32),
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
