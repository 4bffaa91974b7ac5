"""Runs that are killed: they go on to the same result, and leave no process behind."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shardline.components.common import config as configs
from shardline.components.common.config import RunConfig
from shardline.components.common.runfolder import run_storage
from shardline.components.common.storage import Storage
from shardline.components.common.streams import read_all
from shardline.components.elasticity.drill.processes import processes_of
from shardline.components.sharding.step import run as shard
from shardline.components.training.checkpoint import catalog
from tests.commands import shardline
from tests.distributed import runs

# Whole runs, on whatever machine: far above what they take.
pytestmark = pytest.mark.timeout(900)

STEPS = 60
OVERRIDES = ("training.checkpoint.every=10", "training.schedule.decay_steps=60", "monitoring.flush_seconds=0.5")
PATIENCE = 120.0


@pytest.fixture(scope="module")
def undisturbed(root: Path) -> Storage:
    config = runs.make_config(root, run="undisturbed", steps=STEPS, overrides=OVERRIDES)
    shard(config)
    with start_training(root, config) as process:
        assert process.wait(PATIENCE) == 0, errors(process)
    return run_storage(config)


def start_training(root: Path, config: RunConfig, *, command: str = "train") -> subprocess.Popen[str]:
    path = root / f"{config.run}.yaml"
    path.write_text(configs.dump(config), encoding="utf-8")
    return subprocess.Popen(
        [sys.executable, "-m", "shardline.pipelines.cli.main", command, str(path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def errors(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    return process.stderr.read()


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None, errors(process)
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.05)


def workers(run: Storage) -> list[int]:
    """The ids of the worker processes of `run`."""
    return sorted(worker.pid for worker in processes_of(run.url).workers)


def nobody_left(run: Storage) -> bool:
    deadline = time.monotonic() + 20
    while workers(run):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


@pytest.fixture
def config(root: Path, request: pytest.FixtureRequest) -> Iterator[RunConfig]:
    name = re.sub("[^a-z0-9]+", "-", request.node.name)[5:50].strip("-")
    yield runs.make_config(root, run=name, steps=STEPS, overrides=OVERRIDES)


def test_a_killed_worker_is_replaced(root: Path, config: RunConfig, undisturbed: Storage) -> None:
    run = run_storage(config)
    shard(config)
    with start_training(root, config) as process:
        wait_for(lambda: catalog.current(run) is not None, process)
        first = workers(run)
        assert len(first) == 2
        os.kill(first[1], signal.SIGKILL)
        assert process.wait(PATIENCE) == 0, errors(process)
    events = read_all(run.at("events"))
    (lost,) = [event for event in events if event["name"] == "worker.lost"]
    assert (
        f"(process {first[1]}) was ended by SIGKILL; train starts again from the checkpoint of step" in lost["reason"]
    )
    assert [event["name"] for event in events].count("generation.started") == 2
    runs.same_result(run, undisturbed, steps=STEPS)
    assert nobody_left(run)
    done = shardline("report", str(root / f"{config.run}.yaml"), cwd=root)
    assert done.returncode == 0, done.stderr
    assert "worker.lost" in run.read("report.html").decode()


@pytest.mark.parametrize("moment", ["first process", "first steps", "checkpoint"])
def test_a_killed_run_goes_on_where_it_was(root: Path, config: RunConfig, undisturbed: Storage, moment: str) -> None:
    run = run_storage(config)
    shard(config)
    with start_training(root, config) as process:
        if moment == "first process":
            wait_for(lambda: bool(workers(run)), process)
        elif moment == "checkpoint":
            wait_for(lambda: bool(run.names("checkpoints")), process)
        else:
            wait_for(lambda: bool(run.names("metrics")), process)
        process.kill()
    assert nobody_left(run), "a worker outlived the process that started it"
    with start_training(root, config) as process:
        assert process.wait(PATIENCE) == 0, errors(process)
    runs.same_result(run, undisturbed, steps=STEPS)
    owner = json.loads(run.read("owner.json"))
    assert owner["fence"] >= 3
    assert owner["released"]


def test_sigterm_saves_ends_in_order_and_says_where_training_goes_on(
    root: Path, config: RunConfig, undisturbed: Storage
) -> None:
    run = run_storage(config)
    shard(config)
    with start_training(root, config) as process:
        wait_for(lambda: bool(run.names("metrics")) and catalog.current(run) is not None, process)
        process.terminate()
        assert process.wait(PATIENCE) == 143
        lines = errors(process).splitlines()
    assert nobody_left(run)
    assert json.loads(run.read("owner.json"))["released"]
    saved = catalog.current(run)
    assert saved is not None
    assert lines[-1].startswith(f"terminated; the same command goes on from optimizer step {saved.step}")
    # Nothing of torch's, no failure: a line for each step that began or ended, and what was chosen.
    assert {line.split(":")[0] for line in lines[:-1]} == {"train", "layout.chosen"}, lines
    assert "train: stopped" in lines
    with start_training(root, config) as process:
        assert process.wait(PATIENCE) == 0
        assert f"going on from the checkpoint of step {saved.step}" in errors(process).splitlines()
    assert runs.done_anew(run) == []
    runs.same_result(run, undisturbed, steps=STEPS)


def test_an_evaluation_that_is_terminated_leaves_no_result_and_is_done_by_the_same_command(
    root: Path, config: RunConfig
) -> None:
    run = run_storage(config)
    shard(config)
    few = runs.make_config(root, run=config.run, steps=10, overrides=OVERRIDES)
    with start_training(root, few) as process:
        assert process.wait(PATIENCE) == 0, errors(process)
    with start_training(root, few, command="evaluate") as process:
        wait_for(lambda: bool(workers(run)), process)
        process.terminate()
        assert process.wait(PATIENCE) == 143
        assert "evaluate: stopped" in errors(process).splitlines()
    assert nobody_left(run)
    assert not run.names("evaluation")
    with start_training(root, few, command="evaluate") as process:
        assert process.wait(PATIENCE) == 0, errors(process)
    assert run.names("evaluation")


def test_a_second_sigterm_is_not_waited_for(root: Path) -> None:
    overrides = (*OVERRIDES, "training.checkpoint.every=10", "elastic.grace=110")
    config = runs.make_config(root, run="impatient", steps=10_000, overrides=overrides)
    shard(config)
    run = run_storage(config)
    with start_training(root, config) as process:
        wait_for(lambda: catalog.current(run) is not None, process)
        for pid in workers(run):
            os.kill(pid, signal.SIGSTOP)  # nothing will be saved
        process.terminate()
        time.sleep(2)
        assert process.poll() is None
        process.terminate()
        assert process.wait(PATIENCE) == 143
    assert nobody_left(run)


def test_a_run_that_another_process_takes_over_stops(root: Path) -> None:
    config = runs.make_config(root, run="taken-over", steps=10_000, overrides=OVERRIDES)
    run = run_storage(config)
    shard(config)
    with start_training(root, config) as process:
        wait_for(lambda: bool(run.names("metrics")), process)
        owner = json.loads(run.read("owner.json"))
        run.write("owner.json", json.dumps({**owner, "fence": owner["fence"] + 1}).encode())
        assert process.wait(PATIENCE) == 175
        assert "taken this run over" in errors(process)
    assert nobody_left(run)
    assert [event["name"] for event in read_all(run.at("events"))].count("generation.started") == 1


def test_an_error_that_would_come_again_is_not_retried(root: Path) -> None:
    overrides = (
        *OVERRIDES,
        "training.optimizer.weight_decay=1.0e+200",
        "training.optimizer.clip=null",
    )
    config = runs.make_config(root, run="diverges", steps=STEPS, overrides=overrides)
    shard(config)
    with start_training(root, config) as process:
        assert process.wait(PATIENCE) == 2
        said = errors(process)
    assert "lower training.optimizer.lr" in said
    assert "Traceback" not in said
    names = [event["name"] for event in read_all(run_storage(config).at("events"))]
    assert "worker.lost" not in names
    assert names.count("generation.started") == 1


def test_a_run_that_is_asked_to_stop_saves_and_goes_on_where_it_was(root: Path) -> None:
    def config_of(steps: int) -> RunConfig:
        overrides = (*OVERRIDES, "training.checkpoint.every=100000", "training.profile.at=2", "training.layout.pp=2")
        return runs.make_config(root, run="asked", steps=steps, overrides=(*overrides, "resources.processes=2"))

    config = config_of(100_000)
    shard(config)
    run = run_storage(config)
    traces = Path(run.local_path("profiles"))
    with start_training(root, config) as process:
        wait_for(lambda: (traces / "step-000000000002" / "rank-00000.json.gz").exists(), process)
        asked = shardline("profile", run.url, "--steps", "2", "--ranks", "1", cwd=root)
        assert asked.returncode == 0, asked.stderr
        wait_for(lambda: any(traces.glob("*/rank-00001.json.gz")), process)
        stopped = shardline("stop", run.url, cwd=root)
        assert stopped.returncode == 0, stopped.stderr
        assert process.wait(PATIENCE) == 130
        assert "stopped as asked, after optimizer step" in errors(process)
    assert nobody_left(run)
    record = catalog.current(run)
    assert record is not None and not run.exists("control/stop.json")
    for trace in traces.glob("*/*.gz"):
        events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
        assert any("backward" in str(event.get("name", "")).lower() for event in events)

    with start_training(root, config_of(record.step + 5)) as process:
        assert process.wait(PATIENCE) == 0, errors(process)
    found = runs.samples(run)
    assert sorted(found) == list(range(record.step + 5)) and all(len(samples) == 16 for samples in found.values())
    late = shardline("stop", run.url, cwd=root)
    assert late.returncode == 2 and "nobody is at work on this run" in late.stderr
