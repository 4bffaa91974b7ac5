"""Nodes that are set aside: new pods of a job keep away, those that are there leave as long as they are not missed."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from shardline.components.common.kubernetes.avoidance import HOSTNAME
from shardline.components.common.storage import Storage
from shardline.components.elasticity.budget.nodes import BadNodes
from shardline.components.elasticity.operator import badnodes, facts
from shardline.components.elasticity.operator.facts import Job, World
from shardline.components.elasticity.operator.pictures import Picture
from tests.unit.elasticity.operating import manifest, node, pod
from tests.unit.elasticity.test_operator_turn import AT_ONCE, picture_of, rounds

STILL = dataclasses.replace(AT_ONCE, autoscale=False)
ZONE = {"key": "zone", "operator": "In", "values": ["a"]}


def not_in(*nodes: str) -> dict[str, Any]:
    return {"key": HOSTNAME, "operator": "NotIn", "values": list(nodes)}


def job(*terms: list[dict[str, Any]], left_out: str = "", **of: Any) -> Job:
    made = manifest(**of)
    template = made["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    if terms:
        selector = {"nodeSelectorTerms": [{"matchExpressions": term} for term in terms]}
        template["spec"]["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": selector}}
    if left_out:
        made["metadata"]["annotations"] = {"shardline.io/left-out": left_out}
    found = facts.job(made)
    assert found is not None
    return found


def at(name: str, **of: Any) -> Any:
    return node(name, labels={HOSTNAME: name}, **of)


@pytest.mark.parametrize(
    ("there", "aside", "told", "expected"),
    [
        (job(), ["b", "a"], "a,b", [[not_in("a", "b")]]),
        (job([not_in("a")], left_out="a"), ["a", "b"], "a,b", [[not_in("a", "b")]]),
        (job([not_in("a")], left_out="a"), [], None, None),
        (job([ZONE], [not_in("mine")]), ["a"], "a", [[ZONE, not_in("a")], [not_in("a", "mine")]]),
        (job([ZONE, not_in("a")], left_out="a"), [], None, [[ZONE]]),
        # Somebody took the rule out and left the annotation.
        (job(left_out="a"), ["a"], "a", [[not_in("a")]]),
        # What a person left out stays so, whatever is set aside or cleared.
        (job([not_in("mine", "old")], left_out="old"), ["mine"], None, [[not_in("mine")]]),
    ],
)
def test_the_change_of_a_job(there: Job, aside: list[str], told: str | None, expected: Any) -> None:
    change = badnodes.change(there, aside)
    assert change is not None
    assert change["metadata"]["annotations"] == {"shardline.io/left-out": told}
    affinity = change["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["affinity"]["nodeAffinity"]
    (required,) = affinity.values()
    terms = required and [term["matchExpressions"] for term in required["nodeSelectorTerms"]]
    assert terms == expected


@pytest.mark.parametrize(
    ("there", "aside"),
    [
        (job(), []),
        (job([ZONE]), []),
        (job([not_in("a")], left_out="a"), ["a"]),
        (job([not_in("mine", "other"), ZONE]), ["mine"]),
    ],
)
def test_a_job_that_keeps_away_already(there: Job, aside: list[str]) -> None:
    assert badnodes.change(there, aside) is None


def changes(client: Any) -> list[dict[str, Any]]:
    return [
        change for verb, kind, change in client.asked if (verb, kind) == ("patch", "PyTorchJob") and "spec" in change
    ]


def moved(client: Any) -> list[str]:
    return [change["name"] for verb, _, change in client.asked if verb == "delete"]


def test_the_template_first_and_the_pods_when_it_is_seen() -> None:
    pods = (pod("run-worker-0", on="a", job="run"), pod("run-worker-1", on="bad", job="run"))
    nodes = (at("a"), at("bad"))
    operator, client = rounds(job(), picture=Picture(aside=("bad",)), settings=STILL)
    operator.turn(World(jobs=(job(),), pods=pods, nodes=nodes))
    (change,) = changes(client)
    assert change["metadata"]["resourceVersion"] == "7" and moved(client) == []
    assert "NodesSetAside" in client.reasons()
    patched = job([not_in("bad")], left_out="bad")
    operator, client = rounds(patched, picture=Picture(aside=("bad",)), settings=STILL)
    operator.turn(World(jobs=(patched,), pods=pods, nodes=nodes))
    assert changes(client) == [] and moved(client) == ["run-worker-1"] and "PodMoved" in client.reasons()
    (deleted,) = [change for verb, _, change in client.asked if verb == "delete"]
    assert deleted["uid"] == "run-worker-1" and deleted.get("grace") is None


def test_a_pod_that_would_be_missed_stays_until_there_is_room_elsewhere() -> None:
    there = job([not_in("bad")], left_out="bad", least=2, most=2)
    pods = (pod("run-worker-0", on="a", job="run"), pod("run-worker-1", on="bad", job="run"))
    operator, client = rounds(there, picture=Picture(aside=("bad",)), settings=STILL)
    full = World(jobs=(there,), pods=pods, nodes=(at("a", gpus=1), at("bad")))
    for _ in range(2):
        operator.turn(full)
    assert moved(client) == [] and client.reasons().count("NodeNeeded") == 1
    operator.turn(dataclasses.replace(full, nodes=(at("a", gpus=1), at("bad"), at("c", gpus=1))))
    assert moved(client) == ["run-worker-1"]


def test_pods_that_end_or_are_elsewhere_are_left_alone() -> None:
    there = job([not_in("bad")], left_out="bad")
    pods = (
        pod("run-worker-0", on="bad", job="run", ending=True),
        pod("run-worker-1", on="bad", job="run", phase="Failed"),
        pod("run-worker-2", on="a", job="run"),
        pod("another-0", on="bad", job="another"),
    )
    operator, client = rounds(there, picture=Picture(aside=("bad",)), settings=STILL)
    operator.turn(World(jobs=(there,), pods=pods, nodes=(at("a"), at("bad"))))
    assert moved(client) == []


def test_while_nothing_is_known_nothing_is_done() -> None:
    there = job([not_in("old")], left_out="old")
    operator, client = rounds(there, picture=Picture(), settings=STILL)
    operator.turn(World(jobs=(there,), pods=(pod("run-worker-0", on="old", job="run"),), nodes=(at("old"),)))
    assert changes(client) == [] and moved(client) == []


def test_a_picture_tells_the_nodes_of_its_storage_root(tmp_path: Any) -> None:
    BadNodes(Storage(str(tmp_path))).set_aside("gpu-7", reason="ECC errors")
    assert picture_of(tmp_path).aside == ("gpu-7",)
