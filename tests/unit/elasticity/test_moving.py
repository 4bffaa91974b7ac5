"""Where a job that moves is to go, and which of its pods are not there."""

from __future__ import annotations

from typing import Any

from shardline.components.elasticity.moving import Destination, leaving, redirected
from shardline.components.elasticity.operator import facts

HOSTNAME = "kubernetes.io/hostname"


def node(name: str, **labels: str) -> facts.Node:
    return facts.node({"metadata": {"name": name, "labels": {HOSTNAME: name, **labels}}})


def pod(name: str, where: str | None, *, phase: str = "Running", ending: bool = False) -> dict[str, Any]:
    metadata = {"name": name, **({"deletionTimestamp": "now"} if ending else {})}
    return {"metadata": metadata, "spec": {"nodeName": where} if where else {}, "status": {"phase": phase}}


def job(**spec: Any) -> dict[str, Any]:
    return {"spec": {"pytorchReplicaSpecs": {"Worker": {"template": {"spec": spec}}}}}


def spec_of(change: dict[str, Any]) -> Any:
    return change["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]


def test_a_node_is_taken_by_its_labels_and_name() -> None:
    wanted = Destination(labels={"pool": "new"}, off=["b"])
    assert wanted.takes(node("a", pool="new"))
    assert not wanted.takes(node("b", pool="new"))
    assert not wanted.takes(node("a", pool="old"))
    assert not wanted.takes(facts.node({"metadata": {"name": "a"}}))
    assert Destination(labels={}, off=["b"]).takes(node("a"))


def test_what_the_job_asked_of_its_nodes_still_holds() -> None:
    terms = [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    before = job(nodeSelector={"pool": "old", "zone": "1"}, affinity=affinity)
    whole, change = redirected(before, Destination(labels={"pool": "new"}, off=["b"]))
    assert whole.labels == {"pool": "new", "zone": "1"}
    assert spec_of(change)["nodeSelector"] == {"pool": "new", "zone": "1"}
    required = spec_of(change)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert required["nodeSelectorTerms"] == [
        {
            "matchExpressions": [
                {"key": "gpu", "operator": "Exists"},
                {"key": HOSTNAME, "operator": "NotIn", "values": ["b"]},
            ]
        }
    ]


def test_those_leave_that_are_elsewhere_and_first_those_that_train_nowhere() -> None:
    nodes = [node("a", pool="new"), node("b", pool="old")]
    pods = [
        pod("w-0", "b"),
        pod("w-1", "a"),
        pod("w-2", None, phase="Pending"),
        pod("w-3", "gone"),
        pod("w-4", "b", phase="Succeeded"),
        pod("w-5", "b", ending=True),
    ]
    found = leaving(pods, nodes, Destination(labels={"pool": "new"}))
    assert [each["metadata"]["name"] for each in found] == ["w-2", "w-0", "w-3"]
