"""What the nodes have room for: as the scheduler sees it."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from shardline.components.elasticity.operator.demands import demands_of
from shardline.components.elasticity.operator.room import Room
from tests.unit.elasticity.operating import GPU, node, pod, spec

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def room_for(demand: dict[str, Any], *nodes: Any, pods: tuple[Any, ...] = (), **labels: str) -> int:
    """How many pods with that spec and those labels `nodes` have room for."""
    return Room(nodes, pods).place(demands_of(demand, labels), most=100)


def test_what_pods_ask_for_is_taken() -> None:
    nodes = node("a", gpus=4), node("b", gpus=2)
    assert room_for(spec(), *nodes) == 6
    assert room_for(spec(), *nodes, pods=(pod("x", on="a", gpus=3), pod("y", on="b", gpus=2))) == 1
    assert room_for(spec(gpus=2), *nodes, pods=(pod("x", on="a", gpus=1),)) == 2  # 3 and 2 free: no pod spans nodes


def test_a_pod_that_ended_takes_nothing_and_one_that_ends_still_does() -> None:
    assert room_for(spec(), node("a", gpus=2), pods=(pod("x", on="a", phase="Succeeded"),)) == 2
    assert room_for(spec(), node("a", gpus=2), pods=(pod("x", on="a", ending=True),)) == 1


def test_pods_that_wait_have_their_room_kept_the_most_important_first() -> None:
    small, large = pod("small", gpus=1), pod("large", gpus=2, priority=5)
    assert room_for(spec(), node("a", gpus=3), pods=(small,)) == 2
    room = Room([node("a", gpus=2)], [small, large])
    assert room.placed == {"large"}


def test_the_number_of_pods_and_each_resource_limit() -> None:
    assert room_for({"containers": [{"name": "x"}]}, node("a")) == 10
    assert room_for(spec(gpus=0), node("a", gpus=0)) == 8  # cores
    assert room_for(spec(gpus=1), node("a", gpus=0)) == 0


@pytest.mark.parametrize(
    "made",
    [{"ready": False}, {"unschedulable": True}, {"taints": [{"key": "team", "value": "b", "effect": "NoSchedule"}]}],
)
def test_a_node_that_takes_no_pods(made: dict[str, Any]) -> None:
    assert room_for(spec(), node("a", **made)) == 0


def test_taints_that_are_tolerated() -> None:
    tainted = node("a", taints=[{"key": "team", "value": "b", "effect": "NoSchedule"}])
    for toleration in (
        {"key": "team", "operator": "Exists"},
        {"operator": "Exists"},
        {"key": "team", "value": "b", "effect": "NoSchedule"},
    ):
        assert room_for(spec(tolerations=[toleration]), tainted) == 4
    assert room_for(spec(tolerations=[{"key": "team", "value": "c"}]), tainted) == 0
    assert room_for(spec(), node("a", taints=[{"key": "x", "effect": "PreferNoSchedule"}])) == 4


def test_selectors_and_affinity() -> None:
    nodes = node("a", labels={"pool": "gpu", "size": "8"}), node("b", labels={"pool": "cpu"})
    assert room_for(spec(nodeSelector={"pool": "gpu"}), *nodes) == 4

    def affine(*expressions: dict[str, Any]) -> dict[str, Any]:
        terms = {"nodeSelectorTerms": [{"matchExpressions": list(expressions)}]}
        return spec(affinity={"nodeAffinity": {REQUIRED: terms}})

    for expression, count in (
        ({"key": "pool", "operator": "In", "values": ["gpu", "cpu"]}, 8),
        ({"key": "pool", "operator": "NotIn", "values": ["gpu"]}, 4),
        ({"key": "size", "operator": "Exists"}, 4),
        ({"key": "size", "operator": "DoesNotExist"}, 4),
        ({"key": "size", "operator": "Gt", "values": ["7"]}, 4),
        ({"key": "size", "operator": "Lt", "values": ["8"]}, 0),
    ):
        assert room_for(affine(expression), *nodes) == count, expression
    assert room_for(affine(), *nodes) == 0


def test_pods_that_must_be_on_different_nodes() -> None:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "x"}}}
    apart = spec(affinity={"podAntiAffinity": {REQUIRED: [term]}})
    assert room_for(apart, node("a"), node("b"), app="x") == 2
    assert room_for(apart, node("a"), node("b"), app="y") == 8


def test_what_a_pod_asks_for_counts_as_the_scheduler_counts() -> None:
    def container(cpu: str, **more: Any) -> dict[str, Any]:
        return {"name": "x", "resources": {"requests": {"cpu": cpu}}, **more}

    found = demands_of(
        {
            "containers": [container("1"), container("500m")],
            "initContainers": [container("250m", restartPolicy="Always"), container("3")],
            "overhead": {"cpu": "100m"},
        },
        {},
    )
    assert found.requests["cpu"] == Decimal("3.35")  # the init container beside the one that stays, and the overhead
    assert demands_of(spec(), {}).requests[GPU] == 1  # a limit alone is the request
