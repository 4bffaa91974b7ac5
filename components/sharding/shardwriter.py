"""Writes a shard, as `shardfile` describes it. Called by the sharding workers.

Errors: `OSError` and `EnvironmentLacking` for a temporary folder that is full or not there.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from shardline.components.common.errors import EnvironmentLacking
from shardline.components.common.scratch import temporary_file
from shardline.components.sharding.blocks import Blocks
from shardline.components.sharding.shardfile import GROUP, Groups, Shard, hash_of

#: Of a shard without weights, and of one with them, which has a column more.
_FORMAT, _WEIGHTED_FORMAT = "2", "3"


class ShardWriter:
    """Writes blocks into a nameless temporary file, a row group a call; no more than that is in memory.

    Args:
        codec: as `sharding.codec`, but for auto: a name that Parquet has, with its level where it has levels.
        source: the number of the corpus source; weighted: whether its documents have weights of their own.
    """

    def __init__(
        self, *, sequence: int, dtype: npt.DTypeLike, codec: str, source: int = 0, weighted: bool = False
    ) -> None:
        self._file = temporary_file()
        self._sink = _HashingSink(self._file)
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._schema = _schema(sequence, self._dtype, weighted=weighted)
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
        version = _WEIGHTED_FORMAT if weighted else _FORMAT
        about = {"format": version, "sequence": str(sequence), "dtype": np.dtype(dtype).name}
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


def _schema(sequence: int, dtype: np.dtype[Any], *, weighted: bool) -> pa.Schema:
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
    if weighted:
        fields["doc_weights"] = entries(pa.float32())
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
        "doc_weights": blocks.weights,
    }
    lists = {name: values for name, values in lists.items() if name in schema.names}
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
