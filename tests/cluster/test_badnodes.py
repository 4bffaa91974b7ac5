"""Nodes that are set aside, on a real cluster: pods go elsewhere, and nodes that fail again and again are found."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from shardline.components.common.kubernetes.avoidance import LEFT_OUT, terms_of
from shardline.components.common.storage import Storage
from shardline.components.common.streams import read_all
from shardline.components.elasticity.budget.nodes import BadNodes
from tests.cluster import scripts
from tests.cluster.faults import workers_in
from tests.cluster.jobs import STEPS, ClusterRun, Make
from tests.cluster.kube import Cluster, Namespace
from tests.cluster.operating import Operators, Sleepers, slots
from tests.cluster.pods import NodePython
from tests.distributed import runs

pytestmark = pytest.mark.timeout(900)


def nodes_of(job: Sleepers) -> dict[str, str]:
    return {name: str(job.namespace.pod(name).spec.node_name) for name in job.running()}


def template(job: Sleepers) -> Any:
    found = job.get()
    assert found is not None
    return found["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]


def test_pods_leave_a_node_that_is_set_aside_and_may_come_back(
    cluster: Cluster,
    privileged_namespace: Namespace,
    node_python: NodePython,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if cluster.box:
        monkeypatch.setenv("KUBECONFIG", str(scripts.kubeconfig()))
    root = tmp_path / "storage"
    job = Sleepers(privileged_namespace, node_python, root, "aside", workers=2, least=1, most=2)
    nodes = sorted(cluster.nodes())[-2:]
    operators = Operators(privileged_namespace, tmp_path)
    with slots(privileged_namespace, dict.fromkeys(nodes, 2)):
        try:
            job.create().until_running(2)
            operators.leading()
            bad = nodes_of(job)["aside-worker-0"]
            assert BadNodes(Storage(str(root))).set_aside(bad, reason="it is slow")
            job.namespace.until(
                lambda: len(nodes_of(job)) == 2 and bad not in nodes_of(job).values(), f"both have left {bad}"
            )
            assert job.meta["annotations"][LEFT_OUT] == bad
            assert BadNodes(Storage(str(root))).clear(bad)
            job.namespace.until(lambda: LEFT_OUT not in job.meta["annotations"], f"{bad} is taken in again")
            assert terms_of(template(job)) == ()
            assert job.events("PodMoved")
        finally:
            operators.end()


def test_a_node_that_fails_again_and_again_is_set_aside_and_left(
    cluster: Cluster, make: Make, undisturbed: Storage, privileged_namespace: Namespace, tmp_path: Path
) -> None:
    """The agents find it, the operator has the pod made again elsewhere, and nothing is lost."""
    if not cluster.box:
        pytest.skip("the processes of KUBECONFIG's cluster are not ours to kill")
    # Each save takes a while, so that the run lasts as long as its pods need.
    every = ("training.checkpoint.every=1",)
    run = make("bad-node", workers={"replicas": 2, "min": 1, "max": 2}, overrides=every)
    run.shard()
    operators = Operators(privileged_namespace, tmp_path)
    try:
        operators.leading(gain=0)
        run.apply("train")
        run.until(lambda: runs.worlds(run.run)[-1:] == [2] and runs.saved(run.run, 5), "two workers train")
        name = f"{run.name}-worker-1"
        bad = str(run.namespace.pod(name).spec.node_name)
        for _ in range(3):
            kill_worker(run, name)
        run.until(lambda: BadNodes(Storage(run.loaded.config.storage)).names() == [bad], f"{bad} is set aside")
        run.until(lambda: moved(run, name, bad), f"{name} runs elsewhere")
        run.trained()
    finally:
        operators.end()
    assert "node.set_aside" in {event["name"] for event in read_all(run.run.at("events"))}
    runs.same_result(run.run, undisturbed, steps=STEPS)


def kill_worker(run: ClusterRun, pod: str) -> None:
    """Kill the worker in a pod as soon as it trains, and wait until another generation has done a step."""
    saved, generations = runs.last_saved(run.run), len(runs.worlds(run.run))
    for pid in workers_in(run.namespace.pod(pod)):
        os.kill(pid, signal.SIGKILL)
    run.until(
        lambda: len(runs.worlds(run.run)) > generations and runs.worlds(run.run)[-1] == 2,
        "another generation of two trains",
    )
    run.until(lambda: runs.last_saved(run.run) > saved + 1, "it saves")


def moved(run: ClusterRun, name: str, off: str) -> bool:
    workers = run.workers()
    return name in workers and run.namespace.pod(name).spec.node_name != off
