"""A checkpoint is there or it is not: every byte counts, only the owner commits, the one before is used."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from shardline.components.common.config.training_schema import Keep
from shardline.components.common.errors import DamagedData, PeerLost, Superseded, UserError
from shardline.components.common.events import EventLog
from shardline.components.common.owner import OWNER_FILE, hold
from shardline.components.common.storage import Storage
from shardline.components.common.streams import read_all
from shardline.components.training.checkpoint import catalog, loading, record, retention
from shardline.components.training.checkpoint.index import decode
from tests.unit.training.checkpoint_support import context, flip, loaded, save, steps, tensors


@pytest.fixture
def run(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path / "run"))


@pytest.mark.parametrize("background", [True, False])
def test_round_trip_and_open_to_other_tools(run: Storage, background: bool) -> None:
    with hold(run) as lease:
        record = save(run, step=5, value=2.5, fence=lease.fence, background=background)
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
                    found = loading.newest_sound(context(run, fence=lease.fence, generation=2), events=events)
                assert found == before, (path.name, place)
                aside = folder / "commit.damaged-g000002.json"
                assert aside.exists()
                aside.unlink()
                for name, data in originals.items():
                    name.write_bytes(data)
        assert loading.newest_sound(context(run, fence=lease.fence), events=None) == after
    named = [event for event in read_all(run.at("events")) if event["name"] == "checkpoint.damaged"]
    assert named
    assert all(after.folder in event["reason"] for event in named)


@pytest.mark.parametrize("harm", ["no commit", "no data", "empty data", "stray file", "withdrawn"])
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
        elif harm == "withdrawn":
            (folder / "commit.json").write_bytes(catalog._WITHDRAWN)
        else:
            (folder / "stray").write_bytes(b"x")
        expected = after if harm == "stray file" else before
        with EventLog(run, generation=1, writer="t") as events:
            assert loading.newest_sound(context(run, fence=lease.fence), events=events) == expected
    told = [event["reason"] for event in read_all(run.at("events"))]
    assert len(told) == (harm != "stray file")
    assert all(after.folder in reason for reason in told)


def test_what_disappears_while_it_is_read_gives_way_to_the_one_before(run: Storage) -> None:
    with hold(run) as lease:
        before = save(run, step=5, value=1.0, fence=lease.fence)
        after = save(run, step=10, value=2.0, fence=lease.fence)
        target, tried = tensors(0.0), []

        def load(record: catalog.CheckpointRecord) -> None:
            tried.append(record.step)
            if record == after:
                run.delete_tree(record.folder)
            loading.load(target, folder=run.at(record.folder), record=record)

        with EventLog(run, generation=2, writer="t") as events:
            assert loading.load_newest(context(run, fence=lease.fence), load=load, events=events) == before
    assert tried == [10, 5] and torch.equal(target["model.a"], tensors(1.0)["model.a"])
    (event,) = read_all(run.at("events"))
    assert event["name"] == "checkpoint.damaged" and "was removed while it was read" in event["reason"]


def test_no_sound_checkpoint_is_never_a_silent_start_from_nothing(run: Storage) -> None:
    with hold(run) as lease:
        record = save(run, step=5, value=1.0, fence=lease.fence)
        flip(run.local_path(f"{record.folder}/g000001-00000.safetensors"), -1)
        # Nor is it one on the second try, when what was damaged has been put aside.
        for _ in range(2):
            with pytest.raises(DamagedData, match="no checkpoint is sound") as error:
                loading.newest_sound(context(run, fence=lease.fence), events=None)
            assert "step" in str(error.value)
        # Nor where the pointer is lost as well.
        run.delete("checkpoints/latest.json")
        with pytest.raises(DamagedData, match=r"checkpoints/step-000000000005 was put aside as damaged"):
            loading.newest_sound(context(run, fence=lease.fence), events=None)
        assert run.exists(f"{record.folder}/g000001-00000.safetensors")
        # Taking the folder away is what the message says, and a decision.
        run.delete_tree("checkpoints")
        assert loading.newest_sound(context(run, fence=lease.fence), events=None) is None


def test_the_pointer_may_dangle_or_be_empty(run: Storage) -> None:
    with hold(run) as lease:
        record = save(run, step=5, value=1.0, fence=lease.fence)
        for pointer in (b"", b"null", b'{"step": 99, "generation": 1}'):
            run.write("checkpoints/latest.json", pointer)
            assert loading.newest_sound(context(run, fence=lease.fence), events=None) == record
        run.delete_tree(record.folder)
        with pytest.raises(DamagedData, match="names that of step 99, and nothing is there"):
            loading.newest_sound(context(run, fence=lease.fence), events=None)


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
        assert loading.newest_sound(context(run, fence=lease.fence), events=None) == record
    assert [record.step for record in catalog.committed(run)] == [5, 4, 3, 2, 1]
    assert [each["step"] for each in retention.prune_now(run, Keep(last=2), dry_run=True)] == [1, 2, 3]


def take_over(run: Storage) -> None:
    owner = json.loads(run.read(OWNER_FILE))
    run.write(OWNER_FILE, json.dumps({**owner, "fence": owner["fence"] + 1}).encode())


def test_an_old_owner_commits_nothing(run: Storage) -> None:
    with hold(run) as old:
        take_over(run)
        with pytest.raises(Superseded):
            save(run, step=5, value=1.0, fence=old.fence)
    assert catalog.committed(run) == []


def test_a_commit_at_the_very_moment_of_the_take_over_is_taken_back(run: Storage) -> None:
    """As of a process that is stopped between the check of its lease and its commit."""
    with hold(run) as old:
        seen = save(run, step=5, value=1.0, fence=old.fence)
        late = record.CheckpointRecord(**{**vars(seen), "step": 10})
        checks = iter([lambda: None, context(run, fence=old.fence).lease.check])

        def check() -> None:
            next(checks)()
            take_over(run)

        with pytest.raises(Superseded):
            catalog.commit(run, late, check=check)
    assert steps(run) == [5]
    assert json.loads(run.read("checkpoints/latest.json"))["step"] == 5


def test_a_step_is_committed_once_in_a_generation_and_a_later_one_replaces_it(run: Storage) -> None:
    with hold(run) as lease:
        save(run, step=5, value=1.0, fence=lease.fence, generation=2)
        for generation in (1, 2):
            with pytest.raises(PeerLost, match="committed by another process"):
                save(run, step=5, value=9.0, fence=lease.fence, generation=generation)
        # A process of an earlier generation that woke up late must not keep this one from its own.
        again = save(run, step=5, value=3.0, fence=lease.fence, generation=3)
    assert catalog.committed(run) == [again]
    assert torch.equal(loaded(run, again)["model.a"], tensors(3.0)["model.a"])


def test_the_pointer_never_goes_back_to_an_earlier_generation(run: Storage) -> None:
    with hold(run) as lease:
        save(run, step=5, value=1.0, fence=lease.fence, generation=2)
        save(run, step=9, value=1.0, fence=lease.fence, generation=1)
    assert json.loads(run.read("checkpoints/latest.json")) == {"step": 5, "generation": 2}


def test_a_damaged_step_can_be_made_again(run: Storage) -> None:
    with hold(run) as lease:
        record = save(run, step=5, value=1.0, fence=lease.fence)
        catalog.put_aside(run, record.folder, generation=2, mark="damaged")
        again = save(run, step=5, value=3.0, fence=lease.fence, generation=2)
    assert torch.equal(loaded(run, again)["model.a"], tensors(3.0)["model.a"])


def test_a_checkpoint_of_a_future_version_stops(run: Storage) -> None:
    run.write("checkpoints/step-000000000001/commit.json", json.dumps({"version": 99}).encode())
    with pytest.raises(DamagedData, match="version 99"):
        catalog.committed(run)
    with pytest.raises(DamagedData, match="version 99"):
        decode(json.dumps({"version": 99, "tensors": {}}).encode(), where="index")


def test_a_record_of_version_1_is_read(run: Storage) -> None:
    with hold(run) as lease:
        saved = save(run, step=5, value=1.0, fence=lease.fence)
    content = {name: value for name, value in vars(saved).items() if name not in ("identity_keys", "time")} | {
        "version": 1
    }
    data = json.dumps({**content, "check": record._check(content)}).encode()
    run.write(f"{saved.folder}/commit.json", data)
    (found,) = catalog.committed(run)
    assert (found.version, found.identity_keys, found.files) == (1, {}, saved.files)


def test_another_model_is_refused_with_both_shapes(run: Storage) -> None:
    with hold(run) as lease:
        record = save(run, step=5, value=1.0, fence=lease.fence)
    target = {**tensors(0.0), "model.a": torch.zeros(3, 5), "model.c": torch.zeros(2)}
    with pytest.raises(UserError, match="another model") as error:
        loading.load(target, folder=run.at(record.folder), record=record)
    assert "model.a should be 3x5 and is 3x4" in str(error.value)
    assert "model.c should be 2 and is not there" in str(error.value)
    assert error.value.where == run.url_of(record.folder)


def test_a_file_that_ends_early_is_damage_even_where_no_hash_was_checked(run: Storage) -> None:
    with hold(run) as lease:
        record = save(run, step=5, value=1.0, fence=lease.fence)
    path = run.local_path(f"{record.folder}/g000001-00000.safetensors")
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(DamagedData, match="ends before") as error:
        loading.load(tensors(0.0), folder=run.at(record.folder), record=record)
    assert str(path) in str(error.value)
