"""The launcher on a real cluster: killed and started again it finds its job; a cancelled one ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shardline.components.common import config as configs
from shardline.components.training import step as training
from tests.cluster.jobs import ClusterRun, Make
from tests.distributed import runs

pytestmark = pytest.mark.timeout(900)


def launcher(run: ClusterRun, folder: Path, *, cancelled: bool = False) -> subprocess.Popen[str]:
    path = folder / "config.yaml"
    path.write_text(configs.dump(run.loaded.config))
    command = [sys.executable, "-m", "tests.cluster.launching", str(path), "cancelled" if cancelled else "drained"]
    root = Path(__file__).parents[2]
    return subprocess.Popen(command, cwd=root, env=os.environ, stdout=subprocess.PIPE, text=True)


def uid(run: ClusterRun) -> str | None:
    job = run.client.get("PyTorchJob", run.name)
    return None if job is None else str(job["metadata"]["uid"])


def test_killed_and_started_again_it_finds_its_job(make: Make, tmp_path: Path) -> None:
    run = make("found", workers={"replicas": 1})
    run.shard()
    with launcher(run, tmp_path) as first:
        run.until(lambda: runs.saved(run.run, 10), "training has begun")
        first.send_signal(signal.SIGKILL)
    job = uid(run)
    assert job is not None
    with launcher(run, tmp_path) as second:
        output, _ = second.communicate(timeout=300)
    assert second.returncode == 0, output
    assert "is there already: following it" in output and "created" not in output
    assert uid(run) == job
    assert training.outcome(run.loaded.config)["step"] == run.loaded.config.training.steps


@pytest.mark.parametrize("cancelled", [True, False])
def test_a_signal_ends_the_job_only_if_a_person_cancelled(make: Make, tmp_path: Path, cancelled: bool) -> None:
    run = make("ended", workers={"replicas": 1}, overrides=("training.steps=100000",))
    run.shard()
    with launcher(run, tmp_path, cancelled=cancelled) as process:
        run.until(lambda: runs.saved(run.run, 10), "training has begun")
        process.terminate()
        assert process.wait(60) == 143
    job = run.client.get("PyTorchJob", run.name)
    assert (job is None or "deletionTimestamp" in job["metadata"]) is cancelled
