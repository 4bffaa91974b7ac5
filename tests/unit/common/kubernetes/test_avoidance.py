"""Pods are kept away from nodes, whatever else is asked of where they go, and let in again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.components.common.kubernetes import avoidance
from shardline.components.common.kubernetes.avoidance import HOSTNAME, LEFT_OUT, avoiding
from shardline.components.common.kubernetes.render import render
from shardline.components.elasticity.operator.demands import selected
from tests.manifests import FULL, loaded, pods_of

ZONE = {"key": "zone", "operator": "In", "values": ["a"]}


def expression(*nodes: str) -> dict[str, Any]:
    return {"key": HOSTNAME, "operator": "NotIn", "values": list(nodes)}


@pytest.mark.parametrize(
    ("terms", "nodes", "instead_of", "expected"),
    [
        ((), ("b", "a"), (), [{"matchExpressions": [expression("a", "b")]}]),
        ((), (), (), []),
        # Each term alone would let the pod in.
        (
            ({"matchExpressions": [ZONE]}, {"matchFields": [{"key": "metadata.name"}]}),
            ("a",),
            (),
            [
                {"matchExpressions": [ZONE, expression("a")]},
                {"matchExpressions": [expression("a")], "matchFields": [{"key": "metadata.name"}]},
            ],
        ),
        # What a person leaves out stays so.
        (({"matchExpressions": [expression("mine", "old")]},), ("new",), ("old",), [
            {"matchExpressions": [expression("mine", "new")]}
        ]),
        (({"matchExpressions": [expression("old")]},), (), ("old",), []),
        (({"matchExpressions": [ZONE, expression("old")]},), (), ("old",), [{"matchExpressions": [ZONE]}]),
    ],
)  # fmt: skip
def test_every_term_leaves_the_nodes_out(terms: Any, nodes: Any, instead_of: Any, expected: Any) -> None:
    assert avoiding(terms, nodes, instead_of=instead_of) == expected


names = st.sets(st.sampled_from("abcde"))


@given(mine=names, before=names, now=names, zones=st.lists(st.sampled_from("xy"), max_size=2))
def test_a_node_is_let_in_exactly_when_nobody_leaves_it_out(
    mine: set[str], before: set[str], now: set[str], zones: list[str]
) -> None:
    asked = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]} for zone in zones]
    asked = avoiding(asked, mine)
    terms = avoiding(avoiding(asked, before), now, instead_of=before - mine)
    assert avoiding(terms, now, instead_of=now - mine) == terms, "done again it changes nothing"
    for node in "abcdef":
        labels = {HOSTNAME: node, "zone": "x"}
        let_in = not terms or any(selected(term, name=node, labels=labels) for term in terms)
        assert let_in == (node not in mine | now and (not zones or "x" in zones))


def test_all_pods_of_a_run_are_kept_away_and_the_job_tells_which_are_set_aside() -> None:
    patch = "kubernetes.patch=" + str(
        [{"kind": "PyTorchJob", "patch": {"spec": {"pytorchReplicaSpecs": {"Worker": {"template": {"spec": {
            "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}}
        }}}}}}}]
    )  # fmt: skip
    plain = render(loaded(patch, text=FULL))
    found = render(loaded(patch, text=FULL), leave_out=["n1"], aside=["n3", "n1"])
    specs = [*pods_of(found)]
    assert len(specs) == len([*pods_of(plain)]) == 5
    for spec in specs:
        assert avoidance.terms_of(spec) == ({"matchExpressions": [expression("n1", "n3")]},)
        assert "podAntiAffinity" in spec["affinity"] or spec["containers"][0]["name"] != "pytorch"
    (job,) = [each for each in found if each["kind"] == "PyTorchJob"]
    assert job["metadata"]["annotations"][LEFT_OUT] == "n3" and avoidance.left_out(job["metadata"]["annotations"])
    (worker,) = pods_of(job)
    assert worker["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] == [{"weight": 1}]
    # What makes no pod is as it was.
    assert [each for each in found if not [*pods_of(each)]] == [each for each in plain if not [*pods_of(each)]]
    assert render(loaded(text=FULL), leave_out=[], aside=[]) == render(loaded(text=FULL))
