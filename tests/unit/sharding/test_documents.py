from __future__ import annotations

import gzip
import json
import os
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.components.common.config.data_schema import Source
from shardline.components.common.errors import UserError
from shardline.components.sharding import documents
from shardline.components.sharding.corpus import Fields, list_files, open_file
from shardline.components.sharding.documents import line_number, read_piece
from shardline.components.sharding.records import Document, Skipped
from shardline.components.sharding.units import Piece, Units


def reading(path: Path, *, unit: int) -> Iterator[Document | Skipped]:
    files = list_files(Source(urls=[str(path)]))
    units = Units([file.size for file in files], unit)
    for number in range(len(units)):
        for piece in units.pieces(number):
            yield from read_piece(files, piece, fields=Fields("text"))


def read(path: Path, *, unit: int = 1 << 30) -> list[Document | Skipped]:
    return list(reading(path, unit=unit))


def texts(records: list[Document | Skipped]) -> list[str]:
    return [record.text for record in records if isinstance(record, Document)]


def reasons(records: list[Document | Skipped]) -> list[str]:
    return [record.reason for record in records if isinstance(record, Skipped)]


def jsonl(*values: str) -> bytes:
    return b"".join(json.dumps({"text": value}).encode() + b"\n" for value in values)


@given(sizes=st.lists(st.integers(0, 50), max_size=8), unit=st.integers(1, 60))
def test_units_hold_every_byte_once_and_in_order(sizes: list[int], unit: int) -> None:
    units = Units(sizes, unit)
    pieces = [units.pieces(number) for number in range(len(units))]
    covered = [(piece.file, at) for some in pieces for piece in some for at in range(piece.start, piece.end)]
    assert covered == [(file, at) for file, size in enumerate(sizes) for at in range(size)]
    assert all(sum(piece.end - piece.start for piece in some) == unit for some in pieces[:-1])


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.parquet", "a.txt.gz"])
def test_however_units_fall_the_documents_are_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "CUT", 64)
    lines = [f"line {number} é" + "x" * (number * 37 % 150) for number in range(30)] + ["λ" * 200]
    path = tmp_path / name
    if "txt" in name:
        raw = "\n".join(lines).encode()
        path.write_bytes(gzip.compress(raw) if name.endswith("gz") else raw)
    elif name.endswith("jsonl"):
        path.write_bytes(jsonl(*lines))
    else:
        pq.write_table(pa.table({"text": lines}), path, row_group_size=4)
    whole = read(path)
    assert not reasons(whole)
    assert "".join(texts(whole)) == ("\n" if "txt" in name else "").join(lines)
    assert len(whole) > 5
    for unit in (1, 7, 64, 65, 1000):
        assert read(path, unit=unit) == whole


def test_a_long_text_is_cut_after_lines_or_between_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "CUT", 8)
    (tmp_path / "a.txt").write_bytes(b"01234567" + b"89\nbcdef" + b"ghijklmn" + "opqrstuλvw".encode())
    assert texts(read(tmp_path)) == ["0123456789\n", "bcdef", "ghijklmn", "opqrstuλvw"]


def test_line_ends_and_byte_order_marks_make_no_difference(tmp_path: Path) -> None:
    for name, data in {
        "lf.txt": b"one\ntwo\n\nfour",
        "crlf.txt": b"one\r\ntwo\r\n\r\nfour",
        "bom.txt": b"\xef\xbb\xbfone\ntwo\n\nfour",
    }.items():
        (tmp_path / name).write_bytes(data)
    assert texts(read(tmp_path)) == ["one\ntwo\n\nfour"] * 3
    (tmp_path / "cr.md").write_bytes(b"one\rtwo")
    assert texts(read(tmp_path / "cr.md")) == ["one\rtwo"]
    (tmp_path / "bom.jsonl").write_bytes(b"\xef\xbb\xbf" + jsonl("a", "b").replace(b"\n", b"\r\n"))
    assert texts(read(tmp_path / "bom.jsonl")) == ["a", "b"]


def test_what_is_not_text_is_skipped_by_name_and_not_read_as_garbage(tmp_path: Path) -> None:
    for name, data in {
        "latin.txt": "é".encode("latin-1"),
        "utf16.txt": "text".encode("utf-16"),
        "utf16-without-mark.txt": "текст and more".encode("utf-16-le"),
        "binary.txt": bytes(range(256)),
    }.items():
        (tmp_path / name).write_bytes(data)
        (record,) = read(tmp_path / name)
        assert isinstance(record, Skipped) and record.size == len(data)
    (tmp_path / "empty.txt").write_bytes(b"\xef\xbb\xbf")
    assert read(tmp_path / "empty.txt") == []


def test_blank_lines_are_no_records_and_bad_ones_have_a_line_number(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    good = jsonl("first")
    path.write_bytes(good + b"\n   \n" + b'{"text": \n' + jsonl("last") + b"\n\n")
    records = read(path)
    assert texts(records) == ["first", "last"] and reasons(records) == ["not valid JSON"]
    bad = next(record for record in records if isinstance(record, Skipped))
    (file,) = list_files(Source(urls=[str(path)]))
    assert line_number(file, bad.offset) == 4


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"[1]", "not a JSON object"),
        (b'{"other": "x"}', "no field 'text'"),
        (b'{"text": 3}', "field 'text' is not a string"),
        (b'{"text": "\\ud800"}', "half of a surrogate pair"),
        (b'{"text": "\xff"}', "not UTF-8"),
        (b"[" * 100_000, "not valid JSON"),
    ],
)
def test_a_bad_record_says_why(line: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(jsonl("good") + line + b"\n" + jsonl("better"))
    records = read(tmp_path / "a.jsonl")
    assert texts(records) == ["good", "better"] and reasons(records) == [reason]


WEIGHED = Fields("text", weight="w")
REASON = "field 'w' is no weight: it has to be a number from 0 to 1,000,000"


def weighed(path: Path) -> list[Document | Skipped]:
    (file,) = list_files(Source(urls=[str(path)]))
    return list(read_piece([file], Piece(0, 0, file.size), fields=WEIGHED))


def test_a_document_has_the_weight_of_its_record(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    weights = [0, 1, 2.5, 1e-3, 1_000_000]
    path.write_bytes(b"".join(json.dumps({"w": w, "text": f"{w}"}).encode() + b"\n" for w in weights))
    assert [record.weight for record in weighed(path) if isinstance(record, Document)] == weights
    assert [record.weight for record in read(path) if isinstance(record, Document)] == [1.0] * len(weights)
    for name, kind in {"double": pa.float64(), "float": pa.float32(), "decimal": pa.decimal128(12, 4)}.items():
        column = pa.array(weights, pa.float64()).cast(kind)
        pq.write_table(pa.table({"text": [str(w) for w in weights], "w": column}), tmp_path / f"{name}.parquet")
        found = [record.weight for record in weighed(tmp_path / f"{name}.parquet") if isinstance(record, Document)]
        assert found == pytest.approx(weights)


@pytest.mark.parametrize("value", ["-1", '"2"', "null", "true", "[1]", "NaN", "Infinity", "1e7", "1" + "0" * 400])
def test_what_is_no_weight_is_named_by_its_line(value: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": "good", "w": 1}}\n{{"text": "bad", "w": {value}}}\n{{"text": "lacking"}}\n')
    records = weighed(path)
    assert texts(records) == ["good"] and reasons(records) == [REASON, "no field 'w'"]
    bad = next(record for record in records if isinstance(record, Skipped))
    (file,) = list_files(Source(urls=[str(path)]))
    assert line_number(file, bad.offset) == 2


def test_weights_in_a_column(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a", "b", "c"], "w": [1.0, None, -1.0]}), path)
    records = weighed(path)
    assert texts(records) == ["a"] and reasons(records) == [REASON] * 2
    pq.write_table(pa.table({"text": ["a"], "w": ["1"]}), path)
    with pytest.raises(UserError, match=r"a\.parquet: column 'w' is of type string, which is no number"):
        weighed(path)
    pq.write_table(pa.table({"text": ["a"]}), path)
    with pytest.raises(UserError, match=r"a\.parquet: no column 'w'; set corpus\.weight_field; the file has text"):
        weighed(path)


def test_of_a_key_that_is_there_twice_the_last_one_counts(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(jsonl(*"abcd") + b'{"text": "first", "text": "second"}\n' + jsonl(*"efghi"))
    expected = [*"abcd", "second", *"efghi"]
    assert read(path) == read(path, unit=40)
    assert texts(read(path)) == expected and not reasons(read(path))


def test_gzip_files_are_read_whole_or_not_at_all(tmp_path: Path) -> None:
    packed = gzip.compress(jsonl(*(f"record {number}" * 20 for number in range(50))))
    for name, data in {
        "joined.jsonl.gz": packed + gzip.compress(jsonl("more")),
        "short.jsonl.gz": packed[:-100],
        "plain.jsonl.gz": jsonl("plain"),
        "hidden.jsonl": packed,
    }.items():
        (tmp_path / name).write_bytes(data)
    assert len(texts(read(tmp_path / "joined.jsonl.gz"))) == 51
    short, plain, hidden = (read(tmp_path / name) for name in ("short.jsonl.gz", "plain.jsonl.gz", "hidden.jsonl"))
    assert texts(short) == texts(plain) == texts(hidden) == []
    assert reasons(short) == ["a gzip file that is cut short"]
    assert reasons(plain) == ["not a gzip file, or a damaged one"]
    assert reasons(hidden)


def test_the_three_kinds_of_string_columns_are_the_same_and_others_are_refused(tmp_path: Path) -> None:
    values = ["a", "bé", "", None, "c" * 1000]
    strings = pa.array(values)
    for name, column in {
        "string": strings,
        "large": strings.cast(pa.large_string()),
        "dictionary": strings.dictionary_encode(),
    }.items():
        pq.write_table(pa.table({"n": range(5), "text": column}), tmp_path / f"{name}.parquet")
    each = [[(record.offset, record.text) for record in read(path)] for path in sorted(tmp_path.iterdir())]
    assert each == [[(0, "a"), (1, "bé"), (4, "c" * 1000)]] * 3
    assert texts(read(tmp_path)) == ["a", "bé", "c" * 1000] * 3
    for name, column in {"binary": strings.cast(pa.binary()), "list": pa.array([["a"]] * 5)}.items():
        pq.write_table(pa.table({"text": column}), tmp_path / f"{name}.pq.parquet")
        with pytest.raises(UserError, match=rf"{name}.pq.parquet: column 'text' is of type {name}"):
            read(tmp_path / f"{name}.pq.parquet")
    pq.write_table(pa.table({"body": ["a"]}), tmp_path / "other.parquet")
    with pytest.raises(UserError, match=r"no column 'text'.*the file has body"):
        read(tmp_path / "other.parquet")


def test_a_damaged_parquet_file_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 but nothing more")
    assert reasons(read(tmp_path)) == ["not a Parquet file, or a damaged one"]


def test_a_file_that_changes_meanwhile_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("before")
    files = list_files(Source(urls=[str(path)]))
    path.write_text("after it")
    with pytest.raises(UserError, match=r"a\.txt: changed while it was being read"):
        list(read_piece(files, Piece(0, 0, 6), fields=Fields("text")))
    path.unlink()
    with pytest.raises(UserError, match=r"a\.txt: not found"):
        list(read_piece(files, Piece(0, 0, 6), fields=Fields("text")))


def grow(path: Path) -> None:
    with open(path, "ab") as handle:
        handle.write(b"more")


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def write_again(path: Path) -> None:
    path.write_bytes(path.read_bytes()[::-1])
    os.utime(path, ns=(1, 1))


@pytest.mark.parametrize("change", [grow, cut, write_again])
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.jsonl.gz", "a.parquet"])
def test_a_file_that_changes_once_it_is_open_is_noticed(
    name: str, change: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / name
    records = jsonl(*(str(number) for number in range(5000)))
    if name == "a.parquet":
        pq.write_table(pa.table({"text": [str(number) for number in range(5000)]}), path, row_group_size=100)
    else:
        path.write_bytes(gzip.compress(records) if name.endswith("gz") else records)
    files = list_files(Source(urls=[str(path)]))
    records_of = read_piece(files, Piece(0, 0, files[0].size), fields=Fields("text"))
    if name == "a.jsonl.gz":
        with pytest.raises(UserError, match="changed while"), open_file(files[0]):
            change(path)
        return
    next(records_of)
    change(path)
    with pytest.raises(UserError, match=rf"{name}: changed while it was being read"):
        list(records_of)


def test_one_line_of_200_megabytes(tmp_path: Path) -> None:
    text = "λx" * 1000
    line, records = tmp_path / "line.txt", tmp_path / "line.jsonl"
    with open(line, "wb") as one, open(records, "wb") as other:
        other.write(jsonl("first") + b'{"text": "')
        for _ in range(200_000_000 // len(text.encode())):
            one.write(text.encode())
            other.write(text.encode())
        other.write(b'"}\n' + jsonl("last"))
    tracemalloc.start()
    try:
        length, longest = 0, 0
        for record in reading(line, unit=8 << 20):
            assert isinstance(record, Document) and record.text.strip("λx") == ""
            length, longest = length + len(record.text), max(longest, len(record.text.encode()))
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert length == 200_000_000 // len(text.encode()) * len(text) and longest < 2 * documents.CUT

    found = read(records, unit=8 << 20)
    assert texts(found) == ["first", "last"] and reasons(found) == ["a record of more than 64 MiB"]
    assert sum(record.size for record in found if isinstance(record, Skipped)) == line.stat().st_size + 13


def test_a_record_is_as_long_as_allowed_or_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "LONGEST", 100)
    monkeypatch.setattr(documents, "CUT", 7)
    allowed = "x" * (100 - len(jsonl("")))
    (tmp_path / "a.jsonl").write_bytes(jsonl(allowed, allowed + "x", "y" * 500, "z"))
    for unit in (1, 10, 99, 1000):
        found = read(tmp_path / "a.jsonl", unit=unit)
        assert texts(found) == [allowed, "z"] and len(reasons(found)) == 2
    (tmp_path / "a.jsonl").write_bytes(jsonl(allowed + "x")[:-1])
    assert texts(read(tmp_path / "a.jsonl")) == [allowed + "x"]
    pq.write_table(pa.table({"text": ["x" * 100, "x" * 101, "y"]}), tmp_path / "a.parquet")
    found = read(tmp_path / "a.parquet")
    assert texts(found) == ["x" * 100, "y"] and len(reasons(found)) == 1
