"""Whole runs on a real cluster, by what `shardline render` prints; and what becomes of one whose pods go."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from shardline.components.common import config as configs
from shardline.components.common.runfolder import REPORT_FILE, run_storage
from shardline.components.common.storage import Storage
from shardline.components.elasticity.local import local_agent
from shardline.components.sharding import step as sharding
from shardline.components.sharding.dataset import Dataset
from shardline.components.sharding.step import find_dataset
from shardline.components.training import step as training
from tests.cluster.jobs import STEPS, ClusterRun, Make
from tests.distributed import runs

pytestmark = pytest.mark.timeout(900)


def on_this_machine(like: ClusterRun, tmp_path: Path) -> Storage:
    """The same run, undisturbed, by processes of this machine."""
    text = configs.dump(like.loaded.config)
    overrides = (f"storage={tmp_path / 'here'}", "resources.processes=1", "training.layout={pp: 1, dp_shard: 1}")
    config = configs.parse(text, source="here", overrides=overrides).config
    sharding.run(config)
    training.run(config, agent=local_agent(config))
    return run_storage(config)


def test_from_corpus_to_report_with_two_then_four_workers(make: Make, tmp_path: Path) -> None:
    """Sharding as an Indexed Job of three parts, training by two pods and then four in two stages, all in S3."""
    workers = {"replicas": 2, "min": 2, "max": 4}
    run = make("whole", workers=workers, overrides=("training.layout={pp: 2}",), slow_below=4)
    run.apply("shard")
    run.completed("shard")
    run.apply("merge")
    run.completed("merge")
    run.apply("train")
    run.until(lambda: runs.worlds(run.run)[-1:] == [2] and runs.saved(run.run, 10), "two workers train")
    run.scale(4)
    run.until(lambda: runs.worlds(run.run)[-1:] == [4], "four workers train")
    run.trained()
    run.apply("evaluate")
    run.completed("evaluate")
    run.apply("report")
    run.completed("report")

    here = on_this_machine(run, tmp_path)
    runs.same_result(run.run, here, steps=STEPS)
    local = configs.parse((tmp_path / "here/runs/whole/config.yaml").read_text(), source="here").config
    there, expected = find_dataset(run.loaded.config), find_dataset(local)
    assert isinstance(there, Dataset) and there.manifest.fingerprint == expected.manifest.fingerprint
    assert {shard.hash for shard in there.manifest.train.shards} == {s.hash for s in expected.manifest.train.shards}
    assert run.run.exists(REPORT_FILE) and run.run.exists("model/model.safetensors")


@pytest.mark.parametrize("which", ["the leader's", "another"])
def test_a_pod_that_is_deleted_comes_back_and_nothing_is_lost(make: Make, undisturbed: Storage, which: str) -> None:
    run = make("deleted", workers={"replicas": 2, "min": 1, "max": 2})
    run.shard()
    run.apply("train")
    run.until(lambda: len(run.workers()) == 2 and runs.saved(run.run, 10), "two workers train")
    before, leader = run.workers(), leader_of(run)
    victim = leader if which == "the leader's" else next(name for name in before if name != leader)
    survivor = next(name for name in before if name != victim)
    run.namespace.cluster.core.delete_namespaced_pod(victim, run.namespace.name)
    run.until(lambda: len(runs.worlds(run.run)) > 1, "another generation trains")
    run.trained()
    assert run.namespace.starts(survivor) == {before[survivor]: 1}
    runs.same_result(run.run, undisturbed, steps=STEPS)


def test_a_job_that_is_suspended_for_longer_than_ended_ones_stay_goes_on(make: Make, undisturbed: Storage) -> None:
    run = make("held", workers={"replicas": 2, "min": 1, "max": 2}, overrides=("kubernetes.ttl=10",))
    run.shard()
    run.apply("train")
    run.until(lambda: len(run.workers()) == 2 and runs.saved(run.run, 10), "two workers train")
    run.client.patch("PyTorchJob", run.name, {"spec": {"runPolicy": {"suspend": True}}})
    run.until(lambda: run.phase() == "suspended" and not run.namespace.pods(), "it is suspended, without a pod")
    saved = runs.last_saved(run.run)
    time.sleep(20)
    assert run.phase() == "suspended"
    run.client.patch("PyTorchJob", run.name, {"spec": {"runPolicy": {"suspend": False}}})
    run.until(lambda: bool(run.workers()), "workers are back")
    # It may be gone soon after its end.
    run.until(lambda: run.phase() in ("succeeded", "gone"), "training has ended", seconds=400)
    assert runs.last_saved(run.run) == STEPS > saved and not runs.done_anew(run.run)
    runs.same_result(run.run, undisturbed, steps=STEPS)


def leader_of(run: ClusterRun) -> str:
    """The pod whose agent leads."""
    (board,) = run.client.list("ConfigMap", labels={"shardline.io/group": group_of(run)})
    leader = json.loads(board["data"]["state"])["leader"]
    return f"{run.name}-{leader.rsplit('-', 1)[0]}"


def group_of(run: ClusterRun) -> str:
    job = run.client.get("PyTorchJob", run.name)
    assert job is not None
    return f"{run.name}-{job['metadata']['uid'][:8]}"
