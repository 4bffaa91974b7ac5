"""The documents of a Parquet file of a corpus, a row each. Called by `documents`.

What cannot be read comes as `Skipped`; columns that are not there, or of another type, are a `UserError`.
"""

from __future__ import annotations

from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from shardline.components.common.errors import UserError
from shardline.components.sharding.corpus import CorpusFile, Fields
from shardline.components.sharding.records import Bad, Document, Records, Skipped, too_long, utf8, weight_of
from shardline.components.sharding.units import Piece

_ROWS = 256


def read_parquet(handle: IO[bytes], piece: Piece, file: CorpusFile, fields: Fields, *, longest: int) -> Records:
    """The documents of the row groups that begin in `piece`; a row of more than `longest` bytes is skipped.

    Raises:
        UserError: a column that `fields` names is not there, or of another type.
    """
    try:
        table = pq.ParquetFile(handle)
        for key, name in fields.by_key.items():
            _check_column(table.schema_arrow, file, name, key)
        row = 0
        for number in range(table.metadata.num_row_groups):
            group = table.metadata.row_group(number)
            if piece.start <= _first_byte(group) < piece.end:
                yield from _rows(table, number, row, piece.file, fields, longest)
            row += group.num_rows
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and not _is_of_arrow(error):
            raise
        yield Skipped(piece.file, piece.start, "not a Parquet file, or a damaged one", piece.end - piece.start)


def _is_of_arrow(error: OSError) -> bool:
    """Whether Arrow found the bytes to be wrong; else they could not be read, which says nothing about them."""
    return type(error) is OSError and error.errno is None and error.__cause__ is None


def _rows(table: pq.ParquetFile, group: int, row: int, file: int, fields: Fields, longest: int) -> Records:
    # Small batches: one of 2 GiB of text would not fit Arrow's 32-bit offsets.
    columns = list(fields.by_key.values())
    for batch in table.iter_batches(_ROWS, row_groups=[group], columns=columns, use_threads=False):
        texts = [_raw(batch.column(name)) for name in fields.texts]
        weights = _numbers(batch, fields.weight)
        for raw, weight in zip(zip(*texts, strict=True), weights, strict=True):
            if raw[0]:
                size = sum(len(part or b"") for part in raw)
                try:
                    if size > longest:
                        raise too_long(longest)
                    text, *prompt = (utf8(part) for part in raw if part is not None)
                    counts = 1.0 if fields.weight is None else weight_of(weight, fields.weight)
                    yield Document(file, row, text, "".join(prompt), counts)
                except Bad as error:
                    yield Skipped(file, row, str(error), size)
            row += 1


def _raw(column: pa.Array) -> list[bytes | None]:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    values: list[bytes | None] = column.cast(pa.large_binary()).to_pylist()
    return values


def _numbers(batch: pa.RecordBatch, name: str | None) -> list[float | None]:
    if name is None:
        return [None] * batch.num_rows
    values: list[float | None] = batch.column(name).cast(pa.float64(), safe=False).to_pylist()
    return values


def _check_column(schema: pa.Schema, file: CorpusFile, field: str, key: str) -> None:
    """Raises UserError when the column `field`, which `corpus.KEY` names, will not do."""
    if field not in schema.names:
        have = ", ".join(schema.names[:5])
        raise UserError(f"no column {field!r}", where=file.url, hint=f"set corpus.{key}; the file has {have}")
    kind = schema.field(field).type
    what, wanted = ("no number", "numbers") if key == "weight_field" else ("not text", "strings")
    if not (_is_number(kind) if key == "weight_field" else _is_text(kind)):
        raise UserError(
            f"column {field!r} is of type {kind}, which is {what}",
            where=file.url,
            hint=f"set corpus.{key} to a column of {wanted}",
        )


def _is_text(kind: pa.DataType) -> bool:
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(inner) or pa.types.is_large_string(inner) or pa.types.is_string_view(inner))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _first_byte(group: Any) -> int:
    starts = []
    for number in range(group.num_columns):
        column = group.column(number)
        starts.append(column.dictionary_page_offset or column.data_page_offset)
    return int(min(starts))
