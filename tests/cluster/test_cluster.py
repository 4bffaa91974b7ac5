"""The cluster itself: what the other tests rely on is real."""

from __future__ import annotations

import pytest
from kubernetes.client.exceptions import ApiException
from s3fs import S3FileSystem

from tests.cluster import scripts
from tests.cluster.kube import Cluster, Namespace, await_removal, fresh_namespace, reason, until
from tests.cluster.pods import BASE, S3, NodePython, pod

AS_ROOT = {"containers": [{"name": "main", "image": BASE, "command": ["true"]}]}


def test_every_node_is_ready(cluster: Cluster) -> None:
    nodes = cluster.nodes()
    assert nodes and all(nodes.values())
    assert not cluster.box or set(nodes) == {"n0", "n1", "n2"}


def test_a_restricted_namespace_refuses_a_pod_that_runs_as_root(namespace: Namespace) -> None:
    with pytest.raises(ApiException) as refused:
        namespace.create(pod("root", AS_ROOT))
    assert refused.value.status == 403
    assert 'violates PodSecurity "restricted:latest"' in reason(refused.value)
    assert not namespace.pods()


def test_a_restricted_namespace_takes_a_pod_that_keeps_to_it(namespace: Namespace) -> None:
    spec = NodePython(BASE, "python3").spec("-c", "import os; print(os.getuid())")
    namespace.create(pod("modest", spec))
    if namespace.cluster.box:  # others have no such image
        assert namespace.succeeded("modest") == "12345\n"


def test_a_pod_runs_this_checkout(privileged_namespace: Namespace, node_python: NodePython) -> None:
    program = "import shardline.components.common.errors as errors; print(errors.UserError.__name__)"
    privileged_namespace.create(pod("ours", node_python.spec("-c", program)))
    assert privileged_namespace.succeeded("ours") == "UserError\n"


def test_what_a_pod_writes_to_s3_is_read_here(
    s3_in_cluster: S3, privileged_namespace: Namespace, node_python: NodePython
) -> None:
    here = S3FileSystem(endpoint_url=s3_in_cluster.outside, key="test", secret="test")
    here.mkdir("data")
    program = "from shardline.components.common.storage import Storage; Storage('s3://data/run').write('a', b'written')"
    settings = {
        "AWS_ENDPOINT_URL": s3_in_cluster.inside,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
    }
    privileged_namespace.create(pod("writer", node_python.spec("-c", program, env=settings)))
    privileged_namespace.succeeded("writer")
    assert here.cat_file("data/run/a") == b"written"


def test_a_namespace_vanishes_with_all_that_runs_in_it(cluster: Cluster) -> None:
    with fresh_namespace(cluster, level="restricted", failed=lambda: False) as own:
        sleep = NodePython(BASE, "python3").spec("-c", "import time; time.sleep(600)")
        own.create(pod("sleeper", sleep))
        until(lambda: own.phase("sleeper") == "Running" or not cluster.box, "pod sleeper runs")
    await_removal(cluster)
    assert own.name not in {each.metadata.name for each in cluster.core.list_namespace().items}
    assert not own.pods()


def test_a_node_without_power_is_not_ready_and_comes_back(cluster: Cluster, spare_node: str) -> None:
    scripts.node("kill", spare_node)
    until(lambda: not cluster.nodes()[spare_node], f"{spare_node} is not ready", seconds=60)
    assert all(ready for name, ready in cluster.nodes().items() if name != spare_node)
    scripts.node("up", spare_node)
    assert all(cluster.nodes().values())
