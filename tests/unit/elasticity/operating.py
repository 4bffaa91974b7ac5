"""Objects of the API server for the tests of the operator's decisions, and the facts that are made of them."""

from __future__ import annotations

from typing import Any

from shardline.components.elasticity.operator import facts
from shardline.components.elasticity.operator.facts import Job, Node, Pod

GPU = "nvidia.com/gpu"


def node(name: str, *, gpus: int = 4, ready: bool = True, **spec: Any) -> Node:
    labels = spec.pop("labels", {})
    return facts.node(
        {
            "metadata": {"name": name, "labels": labels},
            "spec": spec,
            "status": {
                "allocatable": {"cpu": "8", "memory": "64Gi", "pods": "10", GPU: str(gpus), "hugepages-2Mi": "0"},
                "conditions": [{"type": "Ready", "status": "True" if ready else "Unknown"}],
            },
        }
    )


def spec(*, gpus: int = 1, **more: Any) -> dict[str, Any]:
    return {"containers": [{"name": "pytorch", "resources": {"limits": {"cpu": "1", GPU: str(gpus)}}}], **more}


def pod(
    name: str,
    *,
    on: str | None = None,
    job: str | None = None,
    phase: str | None = None,
    priority: int = 0,
    ending: bool = False,
    **of: Any,
) -> Pod:
    index = name.rpartition("-")[2]
    labels = {"training.kubeflow.org/job-name": job, "training.kubeflow.org/replica-index": index} if job else {}
    conditions = [] if on else [{"type": "PodScheduled", "status": "False", "message": "no node has room"}]
    return facts.pod(
        {
            "metadata": {
                "name": name,
                "namespace": "team",
                "uid": name,
                "labels": labels,
                **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if ending else {}),
            },
            "spec": {**spec(**of), "priority": priority, **({"nodeName": on} if on else {})},
            "status": {"phase": phase or ("Running" if on else "Pending"), "conditions": conditions},
        }
    )


def manifest(
    name: str = "run",
    *,
    workers: int = 2,
    least: int = 1,
    most: int = 4,
    created: str = "2026-01-01T00:00:00Z",
    owner: str | None = None,
) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"uid-{name}",
            "creationTimestamp": created,
            "labels": {"shardline.io/run": name},
            "annotations": {},
            "ownerReferences": [{"kind": "Workflow", "name": owner, "uid": owner}] if owner else [],
        },
        "spec": {
            "runPolicy": {"cleanPodPolicy": "Running"},
            "elasticPolicy": {"minReplicas": least, "maxReplicas": most},
            "pytorchReplicaSpecs": {"Worker": {"replicas": workers, "template": {"spec": spec()}}},
        },
    }


def job(name: str = "run", **of: Any) -> Job:
    found = facts.job(manifest(name, **of))
    assert found is not None
    return found
