"""Checkpoints of several ranks: a failure is everybody's, a late one's commit is nobody's, samples are never lost."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import TCPStore

from shardline.components.common.config import RunConfig
from shardline.components.common.owner import Lease, hold
from shardline.components.common.runfolder import DATASET_FILE, adopt_config, run_storage
from shardline.components.common.storage import Storage
from shardline.components.common.streams import read_all
from shardline.components.common.workers import Job
from shardline.components.elasticity.processes import Processes
from shardline.components.elasticity.worker_main import describe
from shardline.components.planning.layout import Layout
from shardline.components.training.checkpoint import catalog
from tests.commands import eventually
from tests.distributed import runs
from tests.distributed.group import run_group
from tests.distributed.runs import ONE, losses, samples, train

RANKS = "tests.distributed.checkpoint_ranks"
TWO = Layout(dp_shard=2)
OFTEN = ("training.checkpoint.every=2",)
PATIENCE = 120.0


class World:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.dataset = runs.prepare(root)

    def config(self, name: str, *, steps: int = 6, overrides: tuple[str, ...] = OFTEN) -> RunConfig:
        return runs.make_config(self.root, run=name, steps=steps, overrides=overrides)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("checkpoints"))


def of_generation(run: Storage) -> dict[int, int]:
    """The generation of each committed step."""
    return {record.step: record.generation for record in catalog.committed(run)}


def group(run: Storage, entry: str, **arguments: Any) -> None:
    with hold(run) as lease:
        generation = lease.next_generation()
        run_group(f"{RANKS}:{entry}", world=2, run=run, generation=generation, fence=lease.fence, **arguments)


@pytest.mark.parametrize("background", [True, False])
def test_the_first_failure_is_raised_by_every_rank(tmp_path: Path, background: bool) -> None:
    run = Storage(str(tmp_path / "run"))
    group(run, "raise_alike", background=background)
    assert list(of_generation(run)) == [2]
    assert catalog.unfinished(run, catalog.committed(run)) == ["checkpoints/step-000000000001"]


def test_a_folder_that_is_not_the_same_for_all_ranks_shows_when_it_is_written(tmp_path: Path) -> None:
    run = Storage(str(tmp_path / "run"))
    group(run, "write_apart", elsewhere=str(tmp_path / "elsewhere"))
    assert of_generation(run) == {}


def test_a_rank_that_sees_no_files_does_not_make_a_sound_checkpoint_a_damaged_one(tmp_path: Path) -> None:
    run = Storage(str(tmp_path / "run"))
    group(run, "save_well")
    group(run, "look_apart", elsewhere=str(tmp_path / "elsewhere"))
    assert of_generation(run) == {1: 1}


def test_training_goes_on_when_a_disk_is_full(world: World) -> None:
    run = train(world.config("full-disk"), TWO, dataset=world.dataset, entry=f"{RANKS}:full_disk_at_first")
    events = read_all(run.at("events"))
    (failed,) = [event for event in events if event["name"] == "checkpoint.failed"]
    assert failed["data"] == {"step": 2}
    assert failed["reason"].startswith("rank 1: ") and "File too large" in failed["reason"]
    assert sorted(of_generation(run)) == [4, 6] and len(losses(run)) == 6
    undisturbed = train(world.config("no-full-disk"), TWO, dataset=world.dataset)
    assert losses(run) == losses(undisturbed)
    records = [record["data"] for record in read_all(run.at("metrics")) if record["name"] == "train"]
    # What a save takes is part of the step after it.
    assert [record["step"] for record in records if record["save_seconds"] > 0] == [2, 4]
    told = [event["data"] for event in events if event["name"] == "checkpoint.committed"]
    assert all(0 < data["blocked_seconds"] <= data["seconds"] + 1e-3 for data in told)


def test_a_save_that_falls_due_waits_for_the_one_before(world: World) -> None:
    config = world.config("slow", steps=3, overrides=("training.checkpoint.every=1",))
    run = train(config, ONE, dataset=world.dataset, entry=f"{RANKS}:slow_storage", seconds=0.5)
    assert sorted(of_generation(run)) == [1, 2, 3]
    events = read_all(run.at("events"))
    waited = [event["data"] for event in events if event["name"] == "checkpoint.waited"]
    assert [data["step"] for data in waited] == [2] and waited[0]["seconds"] > 0
    told = [event["data"] for event in events if event["name"] == "checkpoint.committed"]
    # Nothing is due after the last one, for which training waits.
    assert told[0]["blocked_seconds"] < 0.5 <= told[0]["seconds"]
    assert told[1]["blocked_seconds"] >= waited[0]["seconds"]


def test_saves_in_the_step_loop_are_the_same_checkpoints(world: World) -> None:
    beside = train(world.config("beside"), TWO, dataset=world.dataset)
    inside = train(
        world.config("inside", overrides=(*OFTEN, "training.checkpoint.async=false")), TWO, dataset=world.dataset
    )
    assert losses(beside) == losses(inside)
    for one, other in zip(catalog.committed(beside), catalog.committed(inside), strict=True):
        assert (one.step, one.files, one.state) == (other.step, other.files, other.state)


def test_every_sample_is_used_once_from_four_ranks_to_two_to_three(world: World) -> None:
    run = run_storage(world.config("dp-4-2-3"))
    for steps, dp in ((3, 4), (6, 2), (10, 3)):
        config = world.config("dp-4-2-3", steps=steps, overrides=())
        assert train(config, Layout(dp_shard=dp), dataset=world.dataset).url == run.url
    straight = train(world.config("dp-1", steps=10, overrides=()), ONE, dataset=world.dataset)
    assert samples(run) == samples(straight)
    assert [record.layout["dp_shard"] for record in catalog.committed(run)] == [3, 2, 4]


def test_a_run_without_checkpoints_begins_anew_and_says_so_and_keeps_what_it_recorded(world: World) -> None:
    run = train(world.config("anew", steps=4), ONE, dataset=world.dataset)
    first = losses(run)
    segments = {name: run.read(f"metrics/{name}") for name in run.names("metrics")}
    damaged = run.local_path(catalog.folder_of(4)) / "g000001-00000.safetensors"
    for folder in catalog.folders(run)[:-1]:
        run.delete_tree(folder)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    for _ in range(2):  # a damaged one ends it, however often it is tried
        with pytest.raises(AssertionError, match=r"DamagedData: .*no checkpoint is sound"):
            train(world.config("anew"), ONE, dataset=world.dataset)
    assert damaged.exists()
    run.delete_tree(catalog.FOLDER)
    train(world.config("anew"), TWO, dataset=world.dataset)
    told = [event for event in read_all(run.at("events")) if event["name"] == "training.begun"]
    assert [event["data"] for event in told] == [{"step": 0, "done_before": 0}, {"step": 0, "done_before": 4}]
    assert told[0]["reason"] == "the run is new" and told[1]["reason"].startswith(
        "4 optimizer steps were done and none"
    )
    assert max(abs(a - b) for a, b in zip(losses(run), first, strict=False)) < 1e-12 and len(losses(run)) == 6
    assert all(run.read(f"metrics/{name}") == data for name, data in segments.items())


def test_a_new_run_of_another_model_is_refused_and_nothing_is_deleted(world: World) -> None:
    config = world.config("other-model", steps=2, overrides=())
    run = train(config, ONE, dataset=world.dataset)
    files = {name: run.read(f"{catalog.folder_of(2)}/{name}") for name in run.names(catalog.folder_of(2))}
    # Without its data set a run's config may still be changed: what guards the checkpoints is in them.
    run.delete(DATASET_FILE)
    other = world.config("other-model", steps=4, overrides=("model.dim=48", "tokenizer.vocab=300"))
    with pytest.raises(AssertionError) as error:
        train(other, ONE, dataset=world.dataset)
    told = str(error.value).splitlines()[-1]
    assert "UserError" in told and run.url_of(catalog.folder_of(2)) in told
    assert "model.dim is 32 there and 48 here" in told and "tokenizer.vocab is 400 there and 300 here" in told
    assert {name: run.read(f"{catalog.folder_of(2)}/{name}") for name in files} == files


# An old generation's rank that wakes up in the middle of a commit: real processes, as an agent starts them.


def start(config: RunConfig, lease: Lease, *, dataset: str, **arguments: Any) -> Workers:
    """Two ranks of a new generation; the store that they meet at lives as long as this process."""
    run = run_storage(config)
    adopt_config(run, config)
    run.write(DATASET_FILE, json.dumps({"key": dataset}).encode())
    _stores.append(TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
    job = Job(
        name="train",
        entry=f"{RANKS}:stop_at",
        arguments=lambda generation, world: {
            "dataset": dataset,
            "layout": TWO.to_json(),
            "device": "cpu",
            **arguments,
        },
    )
    described = describe(job, generation=lease.next_generation(), world=2, run=run, fence=lease.fence, timeout=8)
    return Workers({**described, "host": "127.0.0.1", "port": _stores[-1].port}, url=run.url)


class Workers:
    """The workers of one generation."""

    def __init__(self, job: dict[str, Any], *, url: str) -> None:
        self._processes = Processes(module=RANKS, url=url)
        self._processes.start(job, count=2, first_rank=0, world=2)

    def pid(self, rank: int) -> int:
        eventually(lambda: bool(self._processes.pids().get(rank)))
        return self._processes.pids()[rank]

    def wait(self, rank: int) -> int:
        """Its exit code."""
        eventually(lambda: rank in self._ends())
        return self._ends()[rank]

    def _ends(self) -> dict[int, int]:
        return {end.rank: end.exit_code for end in self._processes.ends()}

    def close(self) -> None:
        self._processes.close()


_stores: list[TCPStore] = []


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_process_that_is_killed_in_a_save_leaves_no_half_checkpoint(world: World) -> None:
    config = world.config("killed")
    run = run_storage(config)
    with hold(run) as lease:
        old = start(config, lease, dataset=world.dataset, moment="killed", step=4)
    try:
        assert old.wait(0) == -signal.SIGKILL and old.wait(1) == 175
    finally:
        old.close()
    assert run.names(catalog.folder_of(4)) and of_generation(run) == {2: 1}
    train(config, TWO, dataset=world.dataset)
    assert of_generation(run) == {2: 1, 4: 2, 6: 2}
    (left,) = [event for event in read_all(run.at("events")) if event["name"] == "checkpoint.unfinished"]
    assert left["data"] == {"folder": catalog.folder_of(4)}
    undisturbed = train(world.config("not-killed"), TWO, dataset=world.dataset)
    assert losses(run) == losses(undisturbed)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("moment", "wakes"),
    [
        ("before the check", "after the new one's commit"),
        ("after the check", "after the new one's commit"),
        ("after the check", "before the new one's commit"),
    ],
)
def test_an_old_rank_that_wakes_up_in_its_commit_changes_nothing(world: World, moment: str, wakes: str) -> None:
    config = world.config(f"zombie-{moment[:5].strip()}-{wakes[:5].strip()}")
    run = run_storage(config)
    with hold(run) as lease:
        old = start(config, lease, dataset=world.dataset, moment=moment, step=4)
    try:
        eventually(lambda: is_stopped(old.pid(0)))
        assert of_generation(run) == {2: 1}
        if wakes == "before the new one's commit":
            with hold(run):
                pass  # who takes a run over has a fence of its own, long before it has a checkpoint
            os.kill(old.pid(0), signal.SIGCONT)
            assert old.wait(0) == 175
            assert of_generation(run) == {2: 1}
        train(config, TWO, dataset=world.dataset)
        assert of_generation(run) == {2: 1, 4: 2, 6: 2}
        if wakes == "after the new one's commit":
            before = {name: run.read(f"{catalog.folder_of(4)}/{name}") for name in run.names(catalog.folder_of(4))}
            os.kill(old.pid(0), signal.SIGCONT)
            assert old.wait(0) == 175
            after = {name: run.read(f"{catalog.folder_of(4)}/{name}") for name in run.names(catalog.folder_of(4))}
            assert after == before
        assert old.wait(1) == 175
    finally:
        old.close()
    assert of_generation(run) == {2: 1, 4: 2, 6: 2}
    assert json.loads(run.read("checkpoints/latest.json")) == {"step": 6, "generation": 2}
