"""A drill on a real cluster, with one fault of each kind."""

from __future__ import annotations

import pytest

from shardline.components.elasticity.drill.plan import CLUSTER
from shardline.pipelines.drill import Wanted, drill
from tests.cluster.jobs import Make

pytestmark = pytest.mark.timeout(1500)


def test_one_fault_of_each_kind_and_nothing_is_lost(make: Make) -> None:
    run = make("drilled", workers={"replicas": 2, "min": 1, "max": 2})
    found = drill(
        run.loaded,
        Wanted(
            kinds=(),
            every=1.0,
            seconds=None,
            count=len(CLUSTER),
            seed=1,
            early=0.0,
            agents=2,
            baseline=False,
            attach=None,
            cluster=True,
            tell=print,
        ),
    )
    assert found["held"], found
    assert {fault["kind"] for fault in found["faults"]} == set(CLUSTER)
    assert run.client.list("PyTorchJob") == [] == run.client.list("PodDisruptionBudget")
