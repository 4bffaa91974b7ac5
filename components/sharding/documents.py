"""The documents of a piece of a file. Called by the workers; the same piece always gives the same documents.

A record belongs to the piece in which it starts, which is decided from the file alone:

* text: a file is one document. One that is longer than `CUT` is cut after the first newline at or after each multiple
  of `CUT`; where there is none before the next multiple, in front of the character at the multiple itself; where
  there is none up to the end of the file, not at all. CRLF is read as LF; a lone CR is a character like any other;
  nothing is added or taken off at the end.
* JSONL: a line is a record, its field `text_field` the document. Lines of white space are no records. When a line has
  the key twice the last one wins. With a `prompt_field` that field is the prompt, and the text the response to it.
  With a `weight_field` that field is the document's weight; in text, and without it, the weight is 1.
* Parquet: a row is a record; a row group belongs where its first byte is.
* A line of JSONL, or a row's text, of more than `LONGEST` bytes is skipped: nearly always a file without its line ends.
* Of a gzip file everything starts at byte 0.

A UTF-8 byte order mark at the start of a file is left out. A document without text, or without a response, is none.
What cannot be read comes as `Skipped`; what to do about it is the caller's decision.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import IO, Any

from shardline.components.sharding.corpus import CorpusFile, Fields, Unreadable, open_file
from shardline.components.sharding.parquet import read_parquet
from shardline.components.sharding.records import Bad, Document, Records, Skipped, too_long, utf8, weight_of
from shardline.components.sharding.units import Piece

CUT = 1 << 20
LONGEST = 64 << 20
_BOM = b"\xef\xbb\xbf"


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
        return read_parquet(handle, piece, file, fields, longest=LONGEST)
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
    except Bad as error:
        yield Skipped(file, offset, str(error), len(raw))
        return
    if text:
        yield Document(file, offset, text.replace("\r\n", "\n") if "\r" in text else text)


def _decode(raw: bytes) -> str:
    if b"\0" in raw:
        raise Bad("holds zero bytes, so it is binary or not UTF-8")
    return utf8(raw)


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
                    raise too_long(LONGEST)
            text, prompt, weight = _record(line.removeprefix(_BOM) if offset == 0 else line, fields)
        except Bad as error:
            yield Skipped(piece.file, offset, str(error), size)
        else:
            if text:
                yield Document(piece.file, offset, text, prompt, weight)
        offset += size


def _pass_line(handle: IO[bytes], *, most: float = math.inf) -> int:
    """Go on to the next line, or until `most` bytes or a few more are passed; how many they were."""
    passed = 0
    while passed < most and (part := handle.readline(CUT)):
        passed += len(part)
        if part.endswith(b"\n"):
            break
    return passed


def _record(line: bytes, fields: Fields) -> tuple[str, str, float]:
    """Text, prompt and weight of a line; a line without a document has no text."""
    if not line.strip():
        return "", "", 1.0
    source = _decode(line)
    try:
        value = json.loads(source)
    except (ValueError, RecursionError):
        raise Bad("not valid JSON") from None
    if not isinstance(value, dict):
        raise Bad("not a JSON object")
    text, *prompt = (_text_of(value, name, escaped="\\u" in source) for name in fields.texts)
    weight = 1.0 if fields.weight is None else weight_of(_found(value, fields.weight), fields.weight)
    return text, "".join(prompt), weight


def _text_of(record: dict[str, Any], field: str, *, escaped: bool) -> str:
    text = _found(record, field)
    if not isinstance(text, str):
        raise Bad(f"field {field!r} is not a string")
    if escaped:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise Bad("half of a surrogate pair") from None
    return text


def _found(record: dict[str, Any], field: str) -> Any:
    if field not in record:
        raise Bad(f"no field {field!r}")
    return record[field]


def line_number(file: CorpusFile, offset: int) -> int:
    """The number, from 1, of the line that starts at byte `offset` of a file."""
    lines = 1
    with open_file(file) as (handle, _):
        while offset > 0 and (chunk := handle.read(min(offset, 1 << 20))):
            lines += chunk.count(b"\n")
            offset -= len(chunk)
    return lines
