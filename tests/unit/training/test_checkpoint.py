"""A checkpoint is there or it is not: every byte counts, nothing in it runs, only the owner commits."""

from __future__ import annotations

import io
import json
import os
import pickle
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from shardline.components.common.errors import DamagedData, PeerLost
from shardline.components.common.events import EventLog
from shardline.components.common.owner import OWNER_FILE, hold
from shardline.components.common.storage import Storage
from shardline.components.common.streams import read_all
from shardline.components.common.workers import WorkerContext
from shardline.components.training.checkpoint import catalog, saving
from shardline.components.training.checkpoint.index import decode
from shardline.components.training.checkpoint.store import TensorLoadPlanner, TensorSavePlanner, Writer

STATE = {"position": 8, "updates": 2, "tokens": 9}


def context(run: Storage, *, fence: int, generation: int = 1) -> WorkerContext:
    return WorkerContext(
        generation=generation,
        rank=0,
        world=1,
        local_rank=0,
        store=None,
        run=run,
        fence=fence,
        timeout=timedelta(seconds=10),
    )


def tensors(value: float) -> dict[str, torch.Tensor]:
    return {
        "model.a": torch.full((3, 4), value, dtype=torch.float64),
        "model.b": torch.arange(6, dtype=torch.bfloat16) + value,
        "optimizer.a.exp_avg": torch.tensor(value),
    }


def save(run: Storage, *, step: int, value: float, fence: int, generation: int = 1) -> catalog.CheckpointRecord:
    return saving.save(
        tensors(value),
        context=context(run, fence=fence, generation=generation),
        step=step,
        state=STATE,
        identity="i",
        layout={"pp": 1},
    )


def loaded(run: Storage, record: catalog.CheckpointRecord) -> dict[str, torch.Tensor]:
    target = tensors(0.0)
    saving.load(target, run=run, record=record)
    return target


@pytest.fixture
def run(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path / "run"))


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place % len(data)] ^= 1
    path.write_bytes(bytes(data))


def test_round_trip_and_open_to_other_tools(run: Storage) -> None:
    with hold(run) as lease:
        record = save(run, step=5, value=2.5, fence=lease.fence)
    found = loaded(run, record)
    assert all(torch.equal(found[name], value) for name, value in tensors(2.5).items())
    assert catalog.current(run) == record
    assert json.loads(run.read("checkpoints/latest.json"))["step"] == 5
    data = [name for name in record.files if name.endswith(".safetensors")]
    assert data == ["g000001-00000.safetensors"]
    outside = load_file(run.local_path(f"{record.folder}/{data[0]}"))
    assert torch.equal(outside["model.a@0,0"], tensors(2.5)["model.a"])


def test_every_flipped_byte_is_noticed_and_the_one_before_is_used(run: Storage) -> None:
    with hold(run) as lease:
        before = save(run, step=5, value=1.0, fence=lease.fence)
        after = save(run, step=10, value=2.0, fence=lease.fence)
        folder = run.local_path(after.folder)
        originals = {path: path.read_bytes() for path in folder.iterdir()}
        for path, original in originals.items():
            for place in range(0, len(original), max(1, len(original) // 40)):
                flip(path, place)
                with EventLog(run, generation=2, writer="t") as events:
                    found = saving.newest_sound(context(run, fence=lease.fence, generation=2), events=events)
                assert found == before, (path.name, place)
                aside = folder / "commit.damaged-g000002.json"
                assert aside.exists()
                aside.unlink()
                for name, data in originals.items():
                    name.write_bytes(data)
        assert saving.newest_sound(context(run, fence=lease.fence), events=None) == after
    named = [event for event in read_all(run.at("events")) if event["name"] == "checkpoint.damaged"]
    assert named
    assert all(after.folder in event["reason"] for event in named)


@pytest.mark.parametrize("harm", ["no commit", "no data", "empty data", "stray file"])
def test_what_is_missing(run: Storage, harm: str) -> None:
    with hold(run) as lease:
        before = save(run, step=5, value=1.0, fence=lease.fence)
        after = save(run, step=10, value=2.0, fence=lease.fence)
        folder = run.local_path(after.folder)
        if harm == "no commit":
            (folder / "commit.json").unlink()
        elif harm == "no data":
            (folder / "g000001-00000.safetensors").unlink()
        elif harm == "empty data":
            (folder / "g000001-00000.safetensors").write_bytes(b"")
        else:
            (folder / "stray").write_bytes(b"x")
        expected = after if harm == "stray file" else before
        assert saving.newest_sound(context(run, fence=lease.fence), events=None) == expected


def test_no_sound_checkpoint_is_never_a_silent_start_from_nothing(run: Storage) -> None:
    with hold(run) as lease:
        record = save(run, step=5, value=1.0, fence=lease.fence)
        flip(run.local_path(f"{record.folder}/g000001-00000.safetensors"), -1)
        with pytest.raises(DamagedData, match="no checkpoint is sound"):
            saving.newest_sound(context(run, fence=lease.fence), events=None)


def test_the_pointer_may_dangle_or_be_empty(run: Storage) -> None:
    with hold(run) as lease:
        record = save(run, step=5, value=1.0, fence=lease.fence)
    for pointer in (b"", b'{"step": 99, "generation": 1}'):
        run.write("checkpoints/latest.json", pointer)
        assert catalog.current(run) == record


def test_a_later_generation_goes_before_a_higher_step(run: Storage) -> None:
    with hold(run) as lease:
        save(run, step=10, value=1.0, fence=lease.fence, generation=1)
        rolled_back = save(run, step=7, value=2.0, fence=lease.fence, generation=2)
    assert catalog.current(run) == rolled_back


@pytest.mark.parametrize("minutes", [20, -20])
def test_no_clock_decides_which_checkpoint_is_the_latest(
    run: Storage, monkeypatch: pytest.MonkeyPatch, minutes: int
) -> None:
    """One worker's clock, and with it the times of all that it writes, is far ahead of the other's."""
    now = time.time
    with hold(run) as lease:
        for step, generation, ahead in ((1, 1, 0), (2, 1, minutes), (3, 2, 0), (4, 2, minutes), (5, 3, 0)):
            monkeypatch.setattr(time, "time", lambda ahead=ahead: now() + 60 * ahead)
            record = save(run, step=step, value=float(step), fence=lease.fence, generation=generation)
            for path in (run.local_path(record.folder), *run.local_path(record.folder).iterdir()):
                os.utime(path, (time.time(), time.time()))
            assert catalog.current(run) == record
        assert saving.newest_sound(context(run, fence=lease.fence), events=None) == record
    assert [record.step for record in catalog.committed(run)] == [5, 4, 3, 2, 1]
    assert catalog.prune(run, keep=2) == [3, 2, 1]


def test_an_old_owner_commits_nothing(run: Storage) -> None:
    with hold(run) as old:
        record = json.loads(run.read(OWNER_FILE))
        run.write(OWNER_FILE, json.dumps({**record, "fence": old.fence + 1}).encode())
        with pytest.raises(PeerLost):
            save(run, step=5, value=1.0, fence=old.fence)
    assert catalog.committed(run) == []


def test_a_step_is_committed_once(run: Storage) -> None:
    with hold(run) as lease:
        first = save(run, step=5, value=1.0, fence=lease.fence, generation=1)
        with pytest.raises(PeerLost, match="committed by another process"):
            save(run, step=5, value=9.0, fence=lease.fence, generation=2)
    assert torch.equal(loaded(run, first)["model.a"], tensors(1.0)["model.a"])


def test_a_damaged_step_can_be_made_again(run: Storage) -> None:
    with hold(run) as lease:
        record = save(run, step=5, value=1.0, fence=lease.fence)
        catalog.put_aside(run, record.folder, generation=2, mark="damaged")
        again = save(run, step=5, value=3.0, fence=lease.fence, generation=2)
    assert torch.equal(loaded(run, again)["model.a"], tensors(3.0)["model.a"])


def test_pruning_keeps_the_newest(run: Storage) -> None:
    with hold(run) as lease:
        for step in (1, 2, 3):
            save(run, step=step, value=float(step), fence=lease.fence)
    assert catalog.prune(run, keep=2) == [1]
    assert [record.step for record in catalog.committed(run)] == [3, 2]
    assert run.names("checkpoints") == ["latest.json", "step-000000000002", "step-000000000003"]


def test_a_checkpoint_of_a_future_version_stops(run: Storage) -> None:
    run.write("checkpoints/step-000000000001/commit.json", json.dumps({"version": 99}).encode())
    with pytest.raises(DamagedData, match="version 99"):
        catalog.committed(run)
    with pytest.raises(DamagedData, match="version 99"):
        decode(json.dumps({"version": 99, "tensors": {}}).encode(), where="index")


class Malice:
    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("a pickle was loaded",))


def test_nothing_is_unpickled(run: Storage) -> None:
    pickled = pickle.dumps(Malice())
    with pytest.raises(DamagedData, match="not a checkpoint index"):
        decode(pickled, where="index")
    with pytest.raises(TypeError, match="only tensors"):
        planner = TensorSavePlanner()
        planner.set_up_planner({"a": Malice()}, is_coordinator=True)
        planner.create_local_plan()
    with hold(run) as lease:
        record = save(run, step=5, value=1.0, fence=lease.fence)
        for name in (".metadata", "g000001-00001.safetensors", "__0_0.distcp"):
            run.write(f"{record.folder}/{name}", pickled)
        assert torch.equal(loaded(run, record)["model.a"], tensors(1.0)["model.a"])
    item: Any = type("Item", (), {"dest_index": type("Index", (), {"fqn": "x"})})
    with pytest.raises(DamagedData, match="not a tensor"):
        TensorLoadPlanner().load_bytes(item, io.BytesIO(pickled))


def test_a_failing_write_leaves_no_checkpoint(run: Storage, tmp_path: Path) -> None:
    with hold(run) as lease:
        (tmp_path / "run" / "checkpoints").write_bytes(b"a file in the way")
        with pytest.raises(Exception, match="cannot be"):
            save(run, step=5, value=1.0, fence=lease.fence)
    assert isinstance(Writer(run, prefix="g", rank=0).files, list)
