"""Streams: nothing appended is lost, and a redone step counts once."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from shardline.components.common.errors import DamagedData, ShardlineError
from shardline.components.common.events import EventLog
from shardline.components.common.storage import Storage
from shardline.components.common.streams import StreamReader, StreamWriter, by_step, read_all


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path))


def writer(storage: Storage, *, generation: int = 1, name: str = "a") -> StreamWriter:
    return StreamWriter(storage, generation=generation, writer=name, flush_seconds=600)


def test_lines_come_back_in_order_with_their_frame(storage: Storage) -> None:
    with writer(storage, generation=3) as stream:
        stream.append("x", {"n": 1}, reason="why")
        stream.append("x", {"n": math.nan, "deep": [math.inf]})
    first, second = read_all(storage)
    assert (first["v"], first["seq"], first["generation"], first["rank"], first["reason"]) == (1, 0, 3, 0, "why")
    assert first["time"].endswith("Z")
    assert second["data"] == {"n": "nan", "deep": ["inf"]}
    assert "reason" not in second
    assert storage.names() == ["000003-a-000000.jsonl"]


def test_the_same_writer_again_never_replaces_a_segment(storage: Storage) -> None:
    for number in range(3):
        with writer(storage) as stream:
            stream.append("x", {"n": number})
    assert sorted(record["data"]["n"] for record in read_all(storage)) == [0, 1, 2]
    assert len(storage.names()) == 3


def test_a_segment_by_size_and_by_time(storage: Storage) -> None:
    stream = writer(storage)
    for number in range(2001):
        stream.append("x", {"n": number})
    reader, seen = StreamReader(storage), 0
    while seen < 2000:
        seen += len(reader.new())
    stream.close()
    assert len(read_all(storage)) == 2001
    timed = StreamWriter(storage.at("timed"), generation=1, writer="a", flush_seconds=0.01)
    timed.append("x", {})
    reader = StreamReader(storage.at("timed"))
    while not reader.new():
        pass
    timed.close()


def test_a_reader_gets_each_record_once(storage: Storage) -> None:
    reader, stream = StreamReader(storage), writer(storage)
    assert reader.new() == []
    stream.append("x", {"n": 1})
    stream.flush()
    assert [record["data"]["n"] for record in reader.new()] == [1]
    stream.append("x", {"n": 2})
    stream.close()
    assert [record["data"]["n"] for record in reader.new()] == [2]


def test_lines_survive_storage_that_fails_for_a_while(tmp_path: Path) -> None:
    (tmp_path / "events").write_bytes(b"a file in the way")
    stream = writer(Storage(str(tmp_path / "events")))
    stream.append("x", {"n": 1})
    with pytest.raises(ShardlineError):
        stream.flush()
    (tmp_path / "events").unlink()
    stream.close()
    assert len(read_all(Storage(str(tmp_path / "events")))) == 1


def test_the_highest_generation_of_a_step_wins(storage: Storage) -> None:
    for generation, losses in ((2, {2: 0.2, 3: 0.3}), (1, {1: 1.1, 2: 1.2})):
        with writer(storage, generation=generation) as stream:
            for step, loss in losses.items():
                stream.append("train", {"step": step, "loss": loss})
    assert [record["data"]["loss"] for record in by_step(read_all(storage))] == [1.1, 0.2, 0.3]


def test_an_event_that_is_not_in_the_table_is_a_bug(storage: Storage) -> None:
    with EventLog(storage, generation=1, writer="a") as events, pytest.raises(KeyError, match=r"no\.such\.event"):
        events.emit("no.such.event")


@pytest.mark.parametrize("garbage", [b"{", b"[]\n", b"\xff", b"null\n"])
def test_a_damaged_segment_is_named(storage: Storage, garbage: bytes) -> None:
    storage.write("000001-a-000000.jsonl", garbage)
    with pytest.raises(DamagedData, match=r"000001-a-000000\.jsonl"):
        read_all(storage)
