"""`shardline run` as processes: killed, stopped and started again, and what it leaves behind.

The real sharding step does the work here; the whole pipeline has its own test.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shardline.components.common.runfolder import read_config
from shardline.components.common.storage import Storage
from tests.commands import SMALL, Started, eventually, marked, shardline, write


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], Started]]:
    started: list[Started] = []
    write(tmp_path)

    def begin() -> Started:
        started.append(Started(tmp_path))
        return started[-1]

    yield begin
    for one in started:
        one.process.kill()
        one.process.communicate()
        eventually(one.all_gone)


def test_killed_it_leaves_no_process_and_the_same_command_goes_on(start: Callable[[], Started], tmp_path: Path) -> None:
    first = start()
    first.wait_for("step.started", step="shard")
    assert len(marked(first.mark)) >= 3  # the command, the pipeline, the task
    first.process.kill()
    first.process.wait()
    eventually(first.all_gone, seconds=10)

    second = start()
    # What else is recorded by then may be the first one's, which is quick.
    eventually(lambda: "run.resumed" in second.names())
    second.wait_for("step.finished", step="shard")

    refused = shardline("run", "config.yaml", cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"written by process {second.process.pid}" in refused.stderr

    second.process.send_signal(signal.SIGINT)
    out, err = second.process.communicate(timeout=60)
    assert (second.process.returncode, out) == (130, "")
    # In which step it was by then is up to the machine.
    begins = "no checkpoint yet: the same command begins training again"
    goes_on = begins if "train: running" in err else "the same command goes on"
    assert f"interrupted; {goes_on}" in err and "Traceback" not in err
    assert "failed" not in err
    eventually(second.all_gone, seconds=10)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.yaml", "data"]


def test_terminated_while_a_step_works_it_ends_in_order(start: Callable[[], Started], tmp_path: Path) -> None:
    started = start()
    started.wait_for("step.started", step="shard")
    started.process.terminate()
    out, err = started.process.communicate(timeout=60)
    assert (started.process.returncode, out) == (143, ""), err
    assert started.all_gone()
    left = json.loads(started.run.read("errors/shard.json"))
    assert left["exit_code"] == 143
    assert "step.stopped" in started.names() and "step.failed" not in started.names()
    assert "shard: stopped" in err.splitlines() and "failed" not in err
    status = shardline("status", started.run.url, cwd=tmp_path)
    assert "stopped in shard" in status.stdout and "error" not in status.stdout
    owner = json.loads(started.run.read("owner.json"))
    assert owner["released"]


def test_the_error_of_a_step_is_the_error_of_the_command(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    write(tmp_path, SMALL.replace('"stdlib:asyncio"', "texts"))
    done = shardline("run", "config.yaml", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    run = tmp_path / "data" / "runs" / "small"
    record = json.loads((run / "errors" / "shard.json").read_text())
    assert f"error: {record['message']}" in done.stderr.splitlines()
    assert f"log: {run}/logs/pipeline.log" in done.stderr.splitlines()
    assert "Traceback" not in done.stderr
    assert "KFP Executor" in (run / "logs" / "pipeline.log").read_text()
    assert (run / "pipeline").is_dir()


def test_a_config_arrives_unchanged_whatever_it_names(tmp_path: Path) -> None:
    # KFP's runner rewrites "python3" in the arguments of a task.
    folder = tmp_path / "python3.11 & more"
    folder.mkdir()
    write(tmp_path, SMALL.replace('"stdlib:asyncio"', f'"{folder}"'))
    done = shardline("run", "config.yaml", cwd=tmp_path)
    assert done.returncode == 2 and str(folder) in done.stderr
    run = Storage(str(tmp_path / "data" / "runs" / "small"))
    assert read_config(run).corpus.urls == [str(folder)]


@pytest.mark.parametrize("root", ["data", "/sys/data"], ids=["a file is in the way", "nobody may write"])
def test_storage_that_cannot_be_written(root: str, tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "data").write_text("in the way")
    done = shardline("run", "config.yaml", "--root", root, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("error: ") and len(done.stderr.splitlines()) == 1, done.stderr
