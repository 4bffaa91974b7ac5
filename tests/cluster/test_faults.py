"""What fails around a run rather than in it: the API server, storage, a node, the network between two pods."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from shardline.components.common.storage import Storage
from shardline.components.common.streams import read_all
from shardline.components.elasticity.drill.processes import processes_of
from tests.cluster import scripts
from tests.cluster.faults import no_connection, run_out_of_memory, silent_api_server, silent_pod
from tests.cluster.jobs import STEPS, ClusterRun, Make
from tests.cluster.kube import Cluster
from tests.cluster.pods import S3
from tests.distributed import runs

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def powered() -> Iterator[list[str]]:
    """Nodes that have power again at the end of the test."""
    nodes: list[str] = []
    yield nodes
    for node in nodes:
        scripts.node("up", node)


@pytest.fixture(autouse=True)
def on_the_box(cluster: Cluster) -> None:
    if not cluster.box:
        pytest.skip("the control plane, the nodes and the network of KUBECONFIG's cluster are not ours to disturb")


def training(run: ClusterRun, *, workers: int) -> dict[str, str]:
    """Apply the run and wait until it trains; the uid of each worker pod."""
    run.shard()
    run.apply("train")
    run.until(lambda: runs.worlds(run.run)[-1:] == [workers] and runs.saved(run.run, 10), "the workers train")
    return run.workers()


def untouched(run: ClusterRun, uids: dict[str, str]) -> None:
    """Assert that no other pods than these had their names and that no container of theirs was started again.

    A job that has succeeded may have deleted a pod that ended a moment ago, as one that still runs.
    """
    assert {name: run.namespace.starts(name) for name in uids} == {name: {uid: 1} for name, uid in uids.items()}


def test_a_process_is_lost_while_the_api_server_is_silent(make: Make, undisturbed: Storage) -> None:
    """The same members form another generation without it."""
    run = make("no-api", workers={"replicas": 2, "min": 2, "max": 2})
    uids = training(run, workers=2)
    with silent_api_server():
        worker = processes_of(run.run.url).workers[0]
        os.kill(worker.pid, signal.SIGKILL)
        run.until(lambda: runs.worlds(run.run) == [2, 2], "another generation trains, without the API server")
        saved = runs.last_saved(run.run)
        run.until(lambda: runs.last_saved(run.run) > saved, "it saves, without the API server")
    run.trained()
    untouched(run, uids)
    runs.same_result(run.run, undisturbed, steps=STEPS)


def test_storage_is_silent_for_a_while(make: Make, undisturbed: Storage, s3_in_cluster: S3) -> None:
    """Training waits for it, and nobody is started again."""
    run = make("no-storage", workers={"replicas": 2, "min": 2, "max": 2})
    uids = training(run, workers=2)
    with silent_pod(s3_in_cluster.pod()):
        time.sleep(40)
    run.trained()
    untouched(run, uids)
    runs.same_result(run.run, undisturbed, steps=STEPS)


def test_a_pod_runs_out_of_memory(make: Make, undisturbed: Storage) -> None:
    run = make("no-memory", workers={"replicas": 2, "min": 1, "max": 2, "memory": "1500Mi"})
    training(run, workers=2)
    generations = len(runs.worlds(run.run))
    run_out_of_memory(run.namespace.pod(f"{run.name}-worker-1"))
    run.until(lambda: len(runs.worlds(run.run)) > generations, "another generation trains")
    run.trained()
    runs.same_result(run.run, undisturbed, steps=STEPS)


def test_a_node_loses_its_power(make: Make, undisturbed: Storage, s3_in_cluster: S3, powered: list[str]) -> None:
    run = make("no-node", workers={"replicas": 3, "min": 1, "max": 3})
    uids = training(run, workers=3)
    nodes = {name: run.namespace.pod(name).spec.node_name for name in uids}
    # The run's storage is on one of them, and the DNS and the operator on n0.
    free = [node for node in set(nodes.values()) if node not in ("n0", s3_in_cluster.pod().spec.node_name)]
    assert free, f"no worker is on a node without anything else: {nodes}"
    node = free[0]
    powered.append(node)
    scripts.node("kill", node)
    staying = {name: uid for name, uid in uids.items() if nodes[name] != node}
    run.until(lambda: runs.worlds(run.run)[-1] == len(staying), "the others train on")
    run.trained()
    untouched(run, staying)
    runs.same_result(run.run, undisturbed, steps=STEPS)


def test_the_network_between_two_pods_is_cut(make: Make, undisturbed: Storage) -> None:
    """One of the two goes on, and both as soon as they reach each other again."""
    workers = {"replicas": 2, "min": 1, "max": 2}
    run = make("cut", workers=workers, overrides=("elastic.timeout=10",), slow_below=2)
    uids = training(run, workers=2)
    one, other = (run.namespace.pod(name) for name in uids)
    with no_connection(one, other):
        run.until(lambda: runs.worlds(run.run)[-1] == 1, "one goes on alone")
    assert [event["name"] for event in read_all(run.run.at("events"))].count("member.apart") == 1
    run.until(lambda: runs.worlds(run.run)[-1] == 2, "both train again")
    run.trained()
    untouched(run, uids)
    runs.same_result(run.run, undisturbed, steps=STEPS)
