"""The documents of a piece of a file. Called by the workers; the same piece always gives the same documents.

A record belongs to the piece in which it starts, which is decided from the file alone:

* text: a file is one document. One that is longer than `CUT` is cut after the first newline at or after each multiple
  of `CUT`; where there is none before the next multiple, in front of the character at the multiple itself; where
  there is none up to the end of the file, not at all. CRLF is read as LF; a lone CR is a character like any other;
  nothing is added or taken off at the end.
* JSONL: a line is a record, its field `text_field` the document. Lines of white space are no records. When a line has
  the key twice the last one wins. With a `prompt_field` that field is the prompt, and the text the response to it.
* Parquet: a row is a record; a row group belongs where its first byte is.
* A line of JSONL, or a row's text, of more than `LONGEST` bytes is skipped: nearly always a file without its line ends.
* Of a gzip file everything starts at byte 0.

A UTF-8 byte order mark at the start of a file is left out. A document without text, or without a response, is none.
What cannot be read comes as `Skipped`; what to do about it is the caller's decision.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from shardline.components.common.errors import UserError
from shardline.components.sharding.corpus import CorpusFile, Fields, Unreadable, open_file
from shardline.components.sharding.units import Piece

CUT = 1 << 20
LONGEST = 64 << 20
_BOM = b"\xef\xbb\xbf"
_ROWS = 256


@dataclass(frozen=True, slots=True)
class Document:
    """A text and its place: the number of its file, and its byte offset there (in Parquet: its row number).

    `prompt` comes before the text, and is not trained on.
    """

    file: int
    offset: int
    text: str
    prompt: str = ""

    @property
    def whole(self) -> str:
        """Prompt and text."""
        return self.prompt + self.text


@dataclass(frozen=True, slots=True)
class Skipped:
    """A document that cannot be read, and the bytes of the corpus that it takes up."""

    file: int
    offset: int
    reason: str
    size: int


class _Bad(Exception):
    """A record that is no document; the text is the reason."""


Records = Iterator[Document | Skipped]


def read_piece(files: Sequence[CorpusFile], piece: Piece, *, fields: Fields) -> Records:
    """The documents that start in `piece`, in order.

    Raises:
        UserError: a Parquet file has no column of text with the name `text_field`, or a file is gone or has changed.
    """
    file = files[piece.file]
    if file.packed and piece.start > 0:
        return
    try:
        with open_file(file) as (handle, size):
            whole = Piece(piece.file, 0, size) if file.packed else piece
            scale = file.size / size if file.packed and size else 1.0
            for record in _read(handle, whole, size, file, fields):
                if isinstance(record, Skipped) and scale != 1.0:
                    # Budgets count the corpus as it is stored.
                    record = Skipped(record.file, record.offset, record.reason, round(record.size * scale))
                yield record
    except Unreadable as error:
        yield Skipped(piece.file, 0, str(error), file.size)


def _read(handle: IO[bytes], piece: Piece, size: int, file: CorpusFile, fields: Fields) -> Records:
    if file.format == "jsonl":
        return _jsonl(handle, piece, fields)
    if file.format == "parquet":
        return _parquet(handle, piece, file, fields)
    return _text(handle, piece, size)


# text


def _text(handle: IO[bytes], piece: Piece, size: int) -> Records:
    number = max(0, piece.start // CUT - 1)
    handle.seek(number * CUT)
    window = handle.read(CUT)
    begin = _cut(window, number)
    while window and number * CUT + begin < piece.end:
        following = handle.read(CUT)
        end = _cut(following, number + 1)
        start = number * CUT + begin
        if start >= piece.start:
            raw = window[begin:] + following[:end]
            yield from _document(raw, piece.file, start)
        number, window, begin = number + 1, following, end


def _cut(window: bytes, number: int) -> int:
    """Where in the window [number * CUT, (number + 1) * CUT) of a file the document with that number begins."""
    if number == 0:
        return 0
    newline = window.find(b"\n")
    if newline >= 0:
        return newline + 1
    if len(window) < CUT:
        return len(window)
    # No newline in reach: not inside a character, whose later bytes are 10xxxxxx.
    return next((at for at in range(4) if window[at] & 0xC0 != 0x80), 0)


def _document(raw: bytes, file: int, offset: int) -> Records:
    try:
        text = _decode(raw.removeprefix(_BOM) if offset == 0 else raw)
    except _Bad as error:
        yield Skipped(file, offset, str(error), len(raw))
        return
    if text:
        yield Document(file, offset, text.replace("\r\n", "\n") if "\r" in text else text)


def _decode(raw: bytes) -> str:
    if b"\0" in raw:
        raise _Bad("holds zero bytes, so it is binary or not UTF-8")
    return _utf8(raw)


def _utf8(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise _Bad("not UTF-8") from None


# JSONL


def _jsonl(handle: IO[bytes], piece: Piece, fields: Fields) -> Records:
    offset = piece.start
    if offset > 0:
        handle.seek(offset - 1)
        offset += _pass_line(handle, most=piece.end - piece.start + 1) - 1
    while offset < piece.end and (line := handle.readline(LONGEST)):
        size = len(line)
        try:
            if size == LONGEST and not line.endswith(b"\n"):
                size += _pass_line(handle)
                if size > LONGEST:
                    raise _too_long()
            text, prompt = _record(line.removeprefix(_BOM) if offset == 0 else line, fields)
        except _Bad as error:
            yield Skipped(piece.file, offset, str(error), size)
        else:
            if text:
                yield Document(piece.file, offset, text, prompt)
        offset += size


def _pass_line(handle: IO[bytes], *, most: float = math.inf) -> int:
    """Go on to the next line, or until `most` bytes or a few more are passed; how many they were."""
    passed = 0
    while passed < most and (part := handle.readline(CUT)):
        passed += len(part)
        if part.endswith(b"\n"):
            break
    return passed


def _too_long() -> _Bad:
    return _Bad(f"a record of more than {LONGEST >> 20} MiB")


def _record(line: bytes, fields: Fields) -> tuple[str, str]:
    if not line.strip():
        return "", ""
    source = _decode(line)
    try:
        value = json.loads(source)
    except (ValueError, RecursionError):
        raise _Bad("not valid JSON") from None
    if not isinstance(value, dict):
        raise _Bad("not a JSON object")
    found = [_text_of(value, name, escaped="\\u" in source) for name in fields.names]
    return found[0], found[1] if len(found) > 1 else ""


def _text_of(record: dict[str, Any], field: str, *, escaped: bool) -> str:
    if field not in record:
        raise _Bad(f"no field {field!r}")
    text = record[field]
    if not isinstance(text, str):
        raise _Bad(f"field {field!r} is not a string")
    if escaped:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise _Bad("half of a surrogate pair") from None
    return text


def line_number(file: CorpusFile, offset: int) -> int:
    """The number, from 1, of the line that starts at byte `offset` of a file."""
    lines = 1
    with open_file(file) as (handle, _):
        while offset > 0 and (chunk := handle.read(min(offset, 1 << 20))):
            lines += chunk.count(b"\n")
            offset -= len(chunk)
    return lines


# Parquet


def _parquet(handle: IO[bytes], piece: Piece, file: CorpusFile, fields: Fields) -> Records:
    try:
        table = pq.ParquetFile(handle)
        for name in fields.names:
            _check_column(table.schema_arrow, file, name)
        row = 0
        for number in range(table.metadata.num_row_groups):
            group = table.metadata.row_group(number)
            if piece.start <= _first_byte(group) < piece.end:
                yield from _rows(table, number, row, piece.file, fields)
            row += group.num_rows
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and not _is_of_arrow(error):
            raise
        yield Skipped(piece.file, piece.start, "not a Parquet file, or a damaged one", piece.end - piece.start)


def _is_of_arrow(error: OSError) -> bool:
    """Whether Arrow found the bytes to be wrong; else they could not be read, which says nothing about them."""
    return type(error) is OSError and error.errno is None and error.__cause__ is None


def _rows(table: pq.ParquetFile, group: int, row: int, file: int, fields: Fields) -> Records:
    # Small batches: one of 2 GiB of text would not fit Arrow's 32-bit offsets.
    for batch in table.iter_batches(_ROWS, row_groups=[group], columns=fields.names, use_threads=False):
        columns = [_raw(batch.column(name)) for name in fields.names]
        for raw in zip(*columns, strict=True):
            if raw[0]:
                size = sum(len(part or b"") for part in raw)
                try:
                    if size > LONGEST:
                        raise _too_long()
                    text, *prompt = (_utf8(part) for part in raw if part is not None)
                    yield Document(file, row, text, *prompt)
                except _Bad as error:
                    yield Skipped(file, row, str(error), size)
            row += 1


def _raw(column: pa.Array) -> list[bytes | None]:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    values: list[bytes | None] = column.cast(pa.large_binary()).to_pylist()
    return values


def _check_column(schema: pa.Schema, file: CorpusFile, field: str) -> None:
    if field not in schema.names:
        have = ", ".join(schema.names[:5])
        raise UserError(f"no column {field!r}", where=file.url, hint=f"set corpus.text_field; the file has {have}")
    kind = schema.field(field).type
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_string(inner) or pa.types.is_large_string(inner) or pa.types.is_string_view(inner)):
        raise UserError(
            f"column {field!r} is of type {kind}, which is not text",
            where=file.url,
            hint="set corpus.text_field to a column of strings",
        )


def _first_byte(group: Any) -> int:
    starts = []
    for number in range(group.num_columns):
        column = group.column(number)
        starts.append(column.dictionary_page_offset or column.data_page_offset)
    return int(min(starts))
