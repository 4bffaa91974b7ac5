"""Snapshots in memory: a run goes on from them, under the same layout or another, and gives the same result."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from shardline.components.common.config import RunConfig
from shardline.components.common.runfolder import run_storage
from shardline.components.common.storage import Storage
from shardline.components.common.streams import read_all
from shardline.components.elasticity.snapshots import choice
from shardline.components.sharding.step import run as shard
from tests.distributed import runs
from tests.distributed.test_group import Group
from tests.distributed.test_survival import PATIENCE, errors, nobody_left, start_training, wait_for, workers

pytestmark = pytest.mark.timeout(900)

STEPS = 60
#: No checkpoint is due before the end.
OVERRIDES = (
    "training.checkpoint.every=1000",
    "elastic.snapshots=2",
    "training.schedule.decay_steps=60",
    "monitoring.flush_seconds=0.5",
)


def make(root: Path, name: str, *overrides: str) -> RunConfig:
    config = runs.make_config(root, run=name, steps=STEPS, overrides=(*OVERRIDES, *overrides))
    shard(config)
    return config


@pytest.fixture(scope="module")
def undisturbed(root: Path) -> Storage:
    config = make(root, "undisturbed", "elastic.snapshots=0")
    with start_training(root, config) as process:
        assert process.wait(PATIENCE) == 0, errors(process)
    run = run_storage(config)
    assert not [event for event in read_all(run.at("events")) if event["name"].startswith("snapshot")]
    return run


@pytest.fixture
def groups() -> Iterator[list[Group]]:
    made: list[Group] = []
    yield made
    for each in made:
        for process in each.processes:
            process.kill()
            process.wait()


def steps_of(run: Storage) -> list[int]:
    return [record["data"]["step"] for record in read_all(run.at("metrics")) if record["name"] == "train"]


def loaded(run: Storage) -> list[int]:
    """The steps of the snapshots that were gone on from; no checkpoint was."""
    events = read_all(run.at("events"))
    assert not [event for event in events if event["name"] in ("checkpoint.loaded", "snapshot.lost")]
    return [event["data"]["step"] for event in events if event["name"] == "snapshot.loaded"]


def far_enough(run: Storage, kills: int) -> bool:
    return len(loaded(run)) == kills and len(set(steps_of(run))) > 12 * (kills + 1)


@pytest.mark.parametrize("layout", ["{dp_shard: 2}", "{pp: 2, dp_shard: 1}", "{tp: 2, dp_shard: 1}"])
def test_a_killed_worker_loses_no_more_than_the_steps_since_the_last_one(
    root: Path, undisturbed: Storage, layout: str
) -> None:
    config = make(
        root, f"killed-{''.join(letter for letter in layout if letter.isalnum())}", f"training.layout={layout}"
    )
    run = run_storage(config)
    with start_training(root, config) as process:
        for victim in (0, 1):
            wait_for(partial(far_enough, run, victim), process)
            os.kill(workers(run)[victim], signal.SIGKILL)
        assert process.wait(PATIENCE) == 0, errors(process)
    runs.same_result(run, undisturbed, steps=STEPS)
    first, second = loaded(run)
    assert 0 < first < second
    # A snapshot is begun every second step, unless the one before is still being written.
    assert len(runs.done_anew(run)) <= 12
    lost = [event["reason"] for event in read_all(run.at("events")) if event["name"] == "worker.lost"]
    assert f"starts again from the snapshot of step {first}" in lost[0]
    assert nobody_left(run)


def test_the_state_of_a_lost_machine_comes_from_the_memory_of_another(
    root: Path, undisturbed: Storage, groups: list[Group]
) -> None:
    """Three machines become two, under another layout; nothing of the third is asked for."""
    two = Group(root, make(root, "lost-machine", "training.layout=auto"), agents="1:3")
    groups.append(two)
    two.start(3)
    two.wait_for(lambda: two.running(3) and copied(two))
    lost = two.others[0]
    lost.kill()
    assert two.ends() == [0, 0], two.errors()
    assert runs.worlds(two.run) == [3, 2]
    assert len(loaded(two.run)) == 1
    runs.same_result(two.run, undisturbed, steps=STEPS)


def copied(group: Group) -> bool:
    """Whether there is a snapshot that the loss of any one member leaves whole."""
    return choice.newest(group.board.members(), first_generation=0, copies=2) is not None


def test_what_no_member_has_any_more_is_done_again_from_the_checkpoint(
    root: Path, undisturbed: Storage, groups: list[Group]
) -> None:
    config = make(root, "nobody-has-it", "training.checkpoint.every=20", "elastic.snapshots=6")
    two = Group(root, config, agents="1:2")
    groups.append(two)
    two.start(2)
    two.wait_for(lambda: two.running(2) and two.saved(20) and copied(two))
    for process in two.processes:
        process.kill()
    for process in two.processes:
        process.wait()
    two.start()
    assert two.ends() == [0], two.errors()
    events = [event["name"] for event in read_all(two.run.at("events"))]
    assert "checkpoint.loaded" in events and "snapshot.loaded" not in events
    runs.same_result(two.run, undisturbed, steps=STEPS)
