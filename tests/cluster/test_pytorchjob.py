"""The training operator: its admission, and what its elastic jobs do with their pods."""

from __future__ import annotations

import json

import pytest
from kubernetes.client.exceptions import ApiException

from tests.cluster.kube import PYTORCHJOB, Namespace, reason
from tests.cluster.pods import NodePython, elastic_job

ENVIRONMENT = "import json, os; import shardline.components.common.errors; print(json.dumps(dict(os.environ)))"


def test_a_job_whose_name_makes_no_service_is_refused(namespace: Namespace, node_python: NodePython) -> None:
    spec = node_python.spec("-c", "pass", name="pytorch")
    with pytest.raises(ApiException) as refused:
        namespace.create(elastic_job("1-begins-with-a-digit", spec, workers=1, least=1, most=1))
    assert "admission webhook" in reason(refused.value) and "DNS-1035" in reason(refused.value)
    assert namespace.get(*PYTORCHJOB, "1-begins-with-a-digit") is None


def test_an_elastic_job_of_two_workers_succeeds(privileged_namespace: Namespace, node_python: NodePython) -> None:
    here = privileged_namespace
    spec = node_python.spec("-c", ENVIRONMENT, name="pytorch")
    here.create(elastic_job("pair", spec, workers=2, least=1, most=2))
    here.until(lambda: "Succeeded" in conditions(here, "pair"), "job pair succeeded")
    pods = [str(each.metadata.name) for each in here.pods()]
    assert pods == ["pair-worker-0", "pair-worker-1"]
    variables = json.loads(here.logs("pair-worker-1"))
    assert variables["PET_RDZV_ENDPOINT"] == "pair-worker-0:23456"
    assert variables["PET_NNODES"] == "1:2"
    assert not {"RANK", "WORLD_SIZE"} & set(variables)


def test_a_deleted_worker_comes_back_under_its_name(privileged_namespace: Namespace, node_python: NodePython) -> None:
    here, worker = privileged_namespace, "lasting-worker-1"
    spec = node_python.spec("-c", "import time; time.sleep(600)", name="pytorch")
    here.create(elastic_job("lasting", spec, workers=2, least=1, most=2))
    here.until(lambda: here.phase(worker) == "Running", f"{worker} runs")
    first, other = here.pod(worker), here.pod("lasting-worker-0")
    assert first and other

    here.cluster.core.delete_namespaced_pod(worker, here.name)

    def replaced() -> bool:
        now = here.pod(worker)
        return bool(now and now.metadata.uid != first.metadata.uid and now.status.phase == "Running")

    here.until(replaced, f"another {worker} runs")
    untouched = here.pod("lasting-worker-0")
    assert untouched and untouched.metadata.uid == other.metadata.uid
    assert "Failed" not in conditions(here, "lasting")


def conditions(namespace: Namespace, job: str) -> set[str]:
    """The conditions of the job that hold."""
    found = namespace.get(*PYTORCHJOB, job)
    assert found is not None
    each = found.get("status", {}).get("conditions", [])
    return {condition["type"] for condition in each if condition["status"] == "True"}
