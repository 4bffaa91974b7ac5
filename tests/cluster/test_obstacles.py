"""What keeps the workers of a real job from running, as the launcher tells it while it waits."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from shardline.components.common.errors import UserError
from shardline.components.elasticity.cluster import launch_of
from shardline.components.elasticity.launcher import KIND, launch
from shardline.pipelines.kubeflow import pods
from tests.cluster import scripts
from tests.cluster.jobs import ClusterRun, Make
from tests.cluster.kube import Cluster, Namespace
from tests.cluster.pods import NodePython

pytestmark = pytest.mark.timeout(600)


@contextmanager
def launched(run: ClusterRun) -> Iterator[list[str]]:
    """What the launcher of a run says, line by line; at the end its job is deleted, and it has ended for that."""
    lines: list[str] = []
    ends: list[BaseException] = []

    def follow() -> None:
        try:
            wanted = launch_of(run.client, run.loaded, step_of=None, identity="test")
            launch(run.client, replace(wanted, tell=lines.append))
        except UserError as error:
            ends.append(error)

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield lines
    finally:
        run.until(lambda: run.client.get(KIND, run.name) is not None, "the job is there")
        run.client.delete(KIND, run.name)
        thread.join(60)
    assert ["was deleted while it was followed" in str(end) for end in ends] == [True]


def quota(run: ClusterRun) -> None:
    run.namespace.create(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "small"},
            "spec": {"hard": {"requests.memory": "1Gi"}},
        }
    )


OBSTACLES = {
    "no such image": ("kubernetes.image=localhost/none:1", r"worker-0: its image cannot be pulled: .*localhost/none:1"),
    "no such secret": (
        "kubernetes.secrets={none: all}",
        r'worker-0: its container cannot be configured: secret "none" not found',
    ),
    "no room": ("kubernetes.workers.cpu='1000'", r"worker-0 is not scheduled: 0/\d+ nodes are available: .*cpu"),
    "no quota": ("kubernetes.workers.memory=3Gi", r"exceeded quota: small, requested: requests.memory=3Gi"),
}


@pytest.mark.parametrize("what", OBSTACLES)
def test_the_launcher_tells_what_keeps_workers_from_running(make: Make, what: str) -> None:
    override, told = OBSTACLES[what]
    run = make("waits", workers={"replicas": 1}, overrides=(override,))
    if what == "no quota":
        quota(run)
    with launched(run) as lines:
        run.until(lambda: any(re.search(told, line) for line in lines), f"the launcher tells of {what}", seconds=60)
    # Once, however long it waits.
    assert sum(bool(re.search(told, line)) for line in lines) == 1, lines


def test_the_pods_of_a_pipeline_tell_why_they_do_not_start_and_how_they_ended(
    cluster: Cluster, namespace: Namespace, node_python: NodePython, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As whoever waits for a run in Kubeflow sees it, by the label that it puts on them."""
    if cluster.box:
        monkeypatch.setenv("KUBECONFIG", str(scripts.kubeconfig()))
    ended = NodePython(node_python.image, "python3").spec("-c", "import sys; sys.exit(3)")
    stuck = {**ended, "containers": [{**ended["containers"][0], "image": "localhost/none:1"}]}
    for name, spec in {"ended": ended, "stuck": stuck}.items():
        labels = {pods.RUN_LABEL: "a-run"}
        meta = {"name": name, "labels": labels}
        namespace.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})

    def told() -> bool:
        found = pods.obstacles("a-run", namespace=namespace.name), pods.last_words("a-run", namespace=namespace.name)
        return all(found) and "stuck: its image cannot be pulled" in found[0][0] and "code 3" in found[1][0]

    namespace.until(told, "both are told of", seconds=60)
    assert pods.obstacles("another-run", namespace=namespace.name) == []
