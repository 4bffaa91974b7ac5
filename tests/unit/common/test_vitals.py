"""A worker's vitals: whole whenever they are read, and no concern of a worker that nobody asked for them."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from shardline.components.common.storage import patience
from shardline.components.common.vitals import VARIABLE, VitalsWriter, collected, read_vitals, seconds_of

MEMORY = {"host_bytes": 1 << 20}


def writer(*, rank: int = 0, generation: int = 1, world: int = 2, **more: Any) -> VitalsWriter:
    return VitalsWriter(
        memory=lambda: MEMORY, rank=rank, generation=generation, world=world, started=1.5, steps=20, **more
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return tmp_path


def test_what_was_set_last_is_there_at_the_end(folder: Path) -> None:
    with writer() as vitals:
        (first,) = read_vitals(folder)
        assert (first.step, first.world, first.started, first.host_bytes) == (None, 2, 1.5, 1 << 20)
        for step in range(1, 6):
            vitals.set(step=step, loss=1 / step)
        vitals.set(checkpoint_step=4)
    (last,) = read_vitals(folder)
    assert (last.step, last.loss, last.checkpoint_step) == (5, 0.2, 4)


def test_requests_to_the_storage_that_were_repeated_are_counted(folder: Path) -> None:
    before = patience.made()
    with writer() as vitals:
        patience.note("it failed for a moment", 0.1)
        vitals._put()  # nothing else has changed: a step may be waiting for the storage
        (found,) = read_vitals(folder)
        assert found.storage_repeats == before + 1


def test_setting_does_not_write(folder: Path) -> None:
    with writer() as vitals:
        shutil.rmtree(folder)
        vitals.set(step=1)  # nor does the thread mind that there is no folder
    assert not folder.exists()


def test_a_worker_that_nobody_asked_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    threads = threading.active_count()
    with writer() as vitals:
        vitals.set(step=1)
        assert threading.active_count() == threads
    assert list(tmp_path.iterdir()) == []


def test_a_reader_never_sees_a_part(folder: Path) -> None:
    vitals = writer()
    ended = threading.Event()
    seen: list[int] = []

    def read() -> None:
        while not ended.is_set():
            seen.append(len(read_vitals(folder)))

    with vitals:
        reader = threading.Thread(target=read)
        reader.start()
        for step in range(1, 500):
            vitals.set(step=step)
            vitals._put()
        ended.set()
        reader.join()
    assert seen and set(seen) == {1}


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), -float("inf")])
def test_a_loss_that_is_not_finite_stays_one(folder: Path, loss: float) -> None:
    with writer() as vitals:
        vitals.set(loss=loss)
    (found,) = read_vitals(folder)
    assert str(found.loss) == str(loss)


def test_only_the_newest_generation_counts(folder: Path) -> None:
    for generation, world in ((1, 3), (2, 3), (3, 2)):
        for rank in range(world):
            with writer(rank=rank, generation=generation, world=world):
                pass
    assert [(each.generation, each.rank) for each in read_vitals(folder)] == [(3, 0), (3, 1)]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"rank": 1}', '{"loss": "high"}', "\x00"])
def test_what_cannot_be_read_is_left_out(folder: Path, text: str) -> None:
    with writer():
        pass
    (folder / "00001.json").write_text(text)
    assert [each.rank for each in read_vitals(folder)] == [0]


def test_the_folder_is_there_for_the_block() -> None:
    with collected() as folder:
        assert os.environ[VARIABLE] == str(folder) and folder.is_dir()
    assert VARIABLE not in os.environ and not folder.exists()


def test_times_of_records_are_read_whoever_wrote_them() -> None:
    assert seconds_of("1970-01-01T00:01:00.500Z") == 60.5
    assert seconds_of("") is None and seconds_of("yesterday") is None
