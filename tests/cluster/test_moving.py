"""`shardline move`: a job that trains goes to other nodes, and nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shardline.components.common import config as configs
from shardline.components.common.storage import Storage
from shardline.pipelines.cli.main import app
from tests.cluster.jobs import STEPS, ClusterRun, Make
from tests.distributed import runs

pytestmark = pytest.mark.timeout(900)


def nodes_of(run: ClusterRun) -> dict[str, str]:
    return {name: run.namespace.pod(name).spec.node_name for name in run.workers()}


def test_a_job_leaves_a_node_while_it_trains(make: Make, undisturbed: Storage, tmp_path: Path) -> None:
    # Each save takes a while, so that the run lasts as long as its pods need.
    every = ("training.checkpoint.every=1",)
    run = make("moved", workers={"replicas": 2, "min": 1, "max": 3}, overrides=every)
    run.shard()
    run.apply("train")
    run.until(lambda: runs.worlds(run.run)[-1:] == [2] and runs.saved(run.run, 10), "two workers train")
    before = nodes_of(run)
    off = before[f"{run.name}-worker-0"]
    path = tmp_path / "config.yaml"
    path.write_text(configs.dump(run.loaded.config))
    done = CliRunner().invoke(app, ["move", str(path), "--off", off, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    moved = json.loads(done.stdout)
    assert {each["pod"] for each in moved} == {name for name, node in before.items() if node == off}
    assert off not in {each["node"] for each in moved}
    run.trained()
    # One more came first, so that never fewer trained than before.
    assert min(runs.worlds(run.run)) == 2
    assert runs.done_anew(run.run) == []
    runs.same_result(run.run, undisturbed, steps=STEPS)
