"""Nothing that comes from a checkpoint runs: a pickle is planted in each place, also with every hash forged."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch

from shardline.components.common.errors import DamagedData, ShardlineError
from shardline.components.common.events import EventLog
from shardline.components.common.owner import Lease
from shardline.components.common.storage import Storage
from shardline.components.common.streams import read_all
from shardline.components.training.checkpoint import catalog, loading, record
from shardline.components.training.checkpoint.store import TensorLoadPlanner
from tests.unit.training.checkpoint_support import context, loaded, save, tensors

INDEX, DATA = "g000001-index.json", "g000001-00000.safetensors"


class Malice:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.mark),))


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "it-ran"
    yield path
    assert not path.exists(), "a pickle was loaded"


@pytest.fixture
def malice(mark: Path, tmp_path: Path) -> bytes:
    harmful = pickle.dumps(Malice(tmp_path / "proof"))
    pickle.loads(harmful)
    assert (tmp_path / "proof").exists(), "it would do no harm: the test would prove nothing"
    return pickle.dumps(Malice(mark))


def resume(run: Storage, lease: Lease) -> tuple[catalog.CheckpointRecord | None, list[str]]:
    """What a run goes on from, and the reasons of its events."""
    with EventLog(run, generation=9, writer="t") as events:
        found = loading.load_newest(
            context(run, fence=lease.fence, generation=9),
            load=lambda each: loading.load(tensors(0.0), folder=run.at(each.folder), record=each),
            events=events,
        )
    return found, [str(event["reason"]) for event in read_all(run.at("events"))]


def forge(run: Storage, saved: catalog.CheckpointRecord, name: str, data: bytes) -> None:
    """Put `data` in the place of a file, and make the commit record fit it."""
    run.write(f"{saved.folder}/{name}", data)
    files = {**saved.files, name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}}
    run.write(f"{saved.folder}/commit.json", record.encode(record.CheckpointRecord(**{**vars(saved), "files": files})))


@pytest.mark.parametrize("name", [INDEX, DATA, "commit.json"])
@pytest.mark.parametrize("forged", [False, True])
def test_in_place_of_a_file_it_is_named_and_the_one_before_is_used(
    run: Storage, lease: Lease, malice: bytes, name: str, forged: bool
) -> None:
    before = save(run, step=5, value=1.0, fence=lease.fence)
    after = save(run, step=10, value=2.0, fence=lease.fence)
    if forged and name != "commit.json":
        forge(run, after, name, malice)
    else:
        run.write(f"{after.folder}/{name}", malice)
    found, reasons = resume(run, lease)
    assert found == before
    assert any(run.url_of(f"{after.folder}/{name}") in reason for reason in reasons), reasons


def test_as_data_of_the_right_size_it_is_numbers(run: Storage, lease: Lease, malice: bytes) -> None:
    saved = save(run, step=5, value=1.0, fence=lease.fence)
    whole = run.read(f"{saved.folder}/{DATA}")
    forge(run, saved, DATA, (malice + bytes(len(whole)))[: len(whole)])
    assert resume(run, lease)[0] is not None


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp", "g000001-00001.safetensors", "state.pt", "pinned.json"])
def test_beside_the_files_it_is_not_looked_at(run: Storage, lease: Lease, malice: bytes, name: str) -> None:
    saved = save(run, step=5, value=1.0, fence=lease.fence)
    run.write(f"{saved.folder}/{name}", malice)
    run.write("checkpoints/latest.json", malice)
    assert resume(run, lease)[0] == saved
    assert torch.equal(loaded(run, saved)["model.a"], tensors(1.0)["model.a"])


@pytest.mark.parametrize(
    "changed",
    [
        {"index": "../../owner.json"},
        {"files": {"../../owner.json": {"size": 1, "sha256": "0" * 64}}},
        {"files": {"g": {"size": "1", "sha256": "0" * 64}}},
        {"files": []},
        {"step": "5"},
        {"step": -1},
        {"state": {}},
        {"extra": 1},
        {"version": True},
    ],
    ids=str,
)
def test_a_record_of_another_form_is_none_whatever_its_hash(
    run: Storage, lease: Lease, changed: dict[str, Any]
) -> None:
    saved = save(run, step=5, value=1.0, fence=lease.fence)
    content = {**vars(saved), **changed}
    content["check"] = record._check(content)
    reasons: list[str] = []
    run.write(f"{saved.folder}/commit.json", json.dumps(content).encode())
    assert catalog.committed(run, on_damage=lambda _, reason: reasons.append(reason)) == []
    assert reasons == [f"{run.url_of(saved.folder)}/commit.json: is not a commit record"]


def test_a_record_in_another_folder_is_none(run: Storage, lease: Lease) -> None:
    saved = save(run, step=5, value=1.0, fence=lease.fence)
    run.write(f"{catalog.folder_of(7)}/commit.json", run.read(f"{saved.folder}/commit.json"))
    reasons: list[str] = []
    assert catalog.committed(run, on_damage=lambda _, reason: reasons.append(reason)) == [saved]
    assert "belongs to checkpoints/step-000000000005" in reasons[0]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"file": "../../../owner.json"}, "no file of this checkpoint"),
        ({"begin": -8}, "is not a checkpoint index"),
        ({"begin": 1 << 40}, "ends before"),
        ({"bytes": 1 << 40}, "is not its size"),
        ({"sizes": [2, 4]}, "is not a checkpoint index"),
        ({"offsets": ["0", "0"]}, "is not a checkpoint index"),
    ],
    ids=str,
)
def test_an_index_that_points_elsewhere_is_damage(
    run: Storage, lease: Lease, change: dict[str, Any], told: str
) -> None:
    saved = save(run, step=5, value=1.0, fence=lease.fence)
    index = json.loads(run.read(f"{saved.folder}/{INDEX}"))
    index["tensors"]["model.a"]["chunks"][0].update(change)
    forge(run, saved, INDEX, json.dumps(index).encode())
    with pytest.raises(DamagedData, match=told) as error:
        (damaged,) = catalog.committed(run)
        loading.load(tensors(0.0), folder=run.at(damaged.folder), record=damaged)
    assert saved.folder in str(error.value)


@pytest.mark.parametrize("text", ["[]", "null", "1", '"x"', "{}", '{"version": 1}', "[" * 100_000])
def test_json_of_another_form_is_told_in_one_message(run: Storage, lease: Lease, text: str) -> None:
    saved = save(run, step=5, value=1.0, fence=lease.fence)
    forge(run, saved, INDEX, text.encode())
    with pytest.raises(ShardlineError, match=r"index\.json"):
        (damaged,) = catalog.committed(run)
        loading.load(tensors(0.0), folder=run.at(damaged.folder), record=damaged)
    run.write(f"{saved.folder}/commit.json", text.encode())
    assert catalog.committed(run) == []


def test_what_torch_would_unpickle_is_refused(malice: bytes) -> None:
    item: Any = type("Item", (), {"dest_index": type("Index", (), {"fqn": "x"})})
    with pytest.raises(DamagedData, match="not a tensor"):
        TensorLoadPlanner(where="x").load_bytes(item, BytesIO(malice))
