"""What a run may lose, in real training: it gives up, goes on, or does without a node, and says why."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from shardline.components.common.config import RunConfig
from shardline.components.common.control import ask
from shardline.components.common.errors import ShardlineError
from shardline.components.common.events import EventLog
from shardline.components.common.owner import hold
from shardline.components.common.runfolder import DATASET_FILE, adopt_config, run_storage
from shardline.components.common.storage import Storage
from shardline.components.common.streams import read_all
from shardline.components.common.workers import Job
from shardline.components.elasticity.budget.keeping import Ledger
from shardline.components.elasticity.budget.nodes import BadNodes
from shardline.components.elasticity.budget.verdict import Limits
from shardline.components.elasticity.drill.processes import processes_of
from shardline.components.elasticity.local import LocalAgent
from shardline.components.planning.layout import Layout
from shardline.components.sharding.step import run as shard
from shardline.components.training.checkpoint import catalog
from tests.distributed import runs
from tests.distributed.test_group import Group
from tests.distributed.test_survival import errors, nobody_left, start_training, wait_for, workers

pytestmark = pytest.mark.timeout(900)

PATIENCE = 180.0
#: A checkpoint every other step and nothing in memory: what is saved when is known.
SAVES = ("training.checkpoint={every: 2, async: false}", "elastic.snapshots=0", "elastic.max_restarts=2")


@pytest.fixture(scope="module")
def dataset(root: Path) -> str:
    return str(shard(runs.make_config(root, run="data"))["key"])


def train(config: RunConfig, *, dataset: str, deaths: Sequence[int]) -> None:
    """Train under an agent, with a worker that dies in each generation that this call starts, as `dying` has it."""
    run, layout = run_storage(config), Layout(dp_shard=2)
    arguments = {"dataset": dataset, "layout": layout.to_json(), "device": "cpu", "deaths": list(deaths), "rank": 1}
    with hold(run) as lease, EventLog(run, generation=lease.fence, writer="test") as log:
        adopt_config(run, config)
        run.write(DATASET_FILE, json.dumps({"key": dataset}).encode())
        record = json.loads(run.read("owner.json"))
        told = {**arguments, "first": record["generation"] + 1}
        job = Job(name="train", entry="tests.distributed.dying:train", arguments=lambda *_: told)
        agent = LocalAgent(processes=2, limits=Limits.of(config), timeout=60, grace=0)
        agent.run(job, run=run, lease=lease, events=log)


def events(run: Storage, name: str) -> list[dict[str, Any]]:
    return [record for record in read_all(run.at("events")) if record["name"] == name]


def test_a_worker_that_dies_at_the_same_step_again_and_again_ends_the_job(root: Path, dataset: str) -> None:
    config = runs.make_config(root, run="same-step", overrides=SAVES)
    run = run_storage(config)
    with pytest.raises(ShardlineError) as ended:
        train(config, dataset=dataset, deaths=[5] * 9)
    assert "was ended by SIGKILL, and elastic.max_restarts (2) is used up, 3 times in a row without" in str(ended.value)
    assert ended.value.exit_code == 175
    entries = Ledger(run).entries()
    assert [(each.cause, each.step, bool(each.spent)) for each in entries] == [
        ("killed", 4, False),
        ("killed", 4, False),
        ("killed", 4, True),
    ]
    (failure,) = [each for each in entries[-1].failures if each.cause == "killed"]
    assert (failure.rank, failure.exit_code) == (1, -signal.SIGKILL) and failure.node
    assert [each["data"]["restarts_left"] for each in events(run, "worker.lost")] == [1, 0]
    (spent,) = events(run, "budget.spent")
    assert spent["data"]["in_a_row"] == 3 and spent["reason"] == str(ended.value)


def test_one_that_makes_progress_goes_on_past_the_limit(root: Path, dataset: str) -> None:
    config = runs.make_config(root, run="progress", overrides=SAVES)
    run = run_storage(config)
    train(config, dataset=dataset, deaths=[3, 3, 5, 5, 7, 7, 9, 9])
    assert [each.step for each in Ledger(run).entries()] == [2, 2, 4, 4, 6, 6, 8, 8]
    assert not events(run, "budget.spent") and len(runs.losses(run)) == runs.STEPS


def test_progress_is_not_enough_for_more_than_a_window_allows(root: Path, dataset: str) -> None:
    config = runs.make_config(root, run="window", overrides=(*SAVES, "elastic.restarts_in_window=2"))
    with pytest.raises(ShardlineError, match=r"elastic.restarts_in_window \(2\) is used up, 3 times in 24 h"):
        train(config, dataset=dataset, deaths=[3, 5, 7, 9])


def test_the_count_outlives_the_agent(root: Path, dataset: str) -> None:
    """The agent is killed with all it has between two losses; the next one counts on."""
    overrides = ("training.checkpoint.every=100000", "elastic.snapshots=0", "elastic.max_restarts=2")
    config = runs.make_config(root, run="outlives", steps=100_000, overrides=overrides)
    run = run_storage(config)
    shard(config)
    with start_training(root, config) as process:
        for losses in (1, 2):
            lose_a_worker(run, process)
            wait_for(lambda losses=losses: len(run.names("ledger")) == losses, process)
        process.kill()
    assert nobody_left(run)
    with start_training(root, config) as process:
        lose_a_worker(run, process)
        assert process.wait(PATIENCE) == 175
        assert "elastic.max_restarts (2) is used up, 3 times in a row" in errors(process)


def lose_a_worker(run: Storage, process: subprocess.Popen[str]) -> None:
    """Kill one of the two that are training, once a generation without a loss so far has begun."""
    lost = {entry.generation for entry in Ledger(run).entries()}
    wait_for(lambda: bool(generations(run) - lost) and len(workers(run)) == 2, process)
    os.kill(workers(run)[-1], signal.SIGKILL)


def generations(run: Storage) -> set[int]:
    """Those that have begun to train."""
    return {record["generation"] for record in read_all(run.at("metrics")) if record["name"] == "train"}


def test_a_node_whose_workers_die_again_and_again_is_done_without(root: Path) -> None:
    overrides = ("training.checkpoint.every=2", "monitoring.flush_seconds=0.5", "elastic.set_aside_after=2")
    config = runs.make_config(root, run="bad-node", steps=100_000, overrides=overrides)
    shard(config)
    three = Group(root, config, agents="1:3")
    try:
        for name in ("n1", "n2", "n3"):
            three.start(1, "--node", name)
        for losses in (1, 2):
            three.wait_for(lambda: three.running(3) and _progressed(three))
            kill_worker_on(three, "n2")
            three.wait_for(lambda losses=losses: len(three.run.names("ledger")) == losses)
        left = three.processes[1]
        assert left.wait(PATIENCE) == 176, three.errors()
        three.wait_for(lambda: three.running(2) and _progressed(three))
        assert set(three.state.nodes.values()) == {"n1", "n3"}
        ask(three.run, "stop")
        assert [process.wait(PATIENCE) for process in three.processes] == [130, 176, 130], three.errors()
        told = three.errors()
    finally:
        for process in three.processes:
            process.kill()
            process.wait()
    assert "error: node n2: is set aside, and the others train without it: 2 losses in 24 h were on it" in told
    (found,) = BadNodes(Storage(config.storage)).all()
    assert (found.name, found.run) == ("n2", three.run.url) and len(found.entries) == 2
    (event,) = events(three.run, "node.set_aside")
    assert event["data"]["node"] == "n2"
    check_that_it_lasts(root, found.name)


def check_that_it_lasts(root: Path, name: str) -> None:
    """In another run the node takes part only where there would be too few without it."""
    config = runs.make_config(root, run="next-run", steps=60, overrides=("training.checkpoint.every=10",))
    shard(config)
    two = Group(root, config, agents="2")
    try:
        two.start(1, "--node", name)
        two.start(1, "--node", "n1")
        assert two.ends() == [0, 0], two.errors()
        assert runs.worlds(two.run) == [2]
    finally:
        for process in two.processes:
            process.kill()
            process.wait()


def _progressed(group: Group) -> bool:
    """Whether the generation at work has saved a step of its own."""
    found = catalog.current(group.run)
    return found is not None and found.generation == group.state.generation


def kill_worker_on(group: Group, node: str) -> None:
    state = group.state
    (member,) = [name for name, place in state.nodes.items() if place == node]
    rank = state.ranks[member]
    (worker,) = [each for each in processes_of(group.run.url).workers if each.name.startswith(f"rank {rank}")]
    os.kill(worker.pid, signal.SIGKILL)
