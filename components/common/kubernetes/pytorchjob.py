"""A run's training as a PyTorchJob of the training operator (kubeflow.org/v1). Pure.

Called by `render` and by whatever launches training. Workers only: with a Master the operator would hold each worker
back until a name resolves, and count the Master's end alone. The operator's own restart and time limits do not work
(kubeflow/trainer#2045, #3358), so none is set: the run has its own.
"""

from __future__ import annotations

from typing import Any

from shardline.components.common.config import RunConfig
from shardline.components.common.kubernetes.names import Names
from shardline.components.common.kubernetes.objects import Manifest
from shardline.components.common.kubernetes.pods import WORKER, meta, queue_labels, worker_pod


def pytorchjob(config: RunConfig) -> Manifest:
    """The PyTorchJob of `config`'s run."""
    section = config.kubernetes
    workers = section.workers
    spec: Manifest = {
        # The one process of a pod, as far as the operator knows, is the agent.
        "nprocPerNode": "1",
        "runPolicy": _run_policy(config),
        "pytorchReplicaSpecs": {
            "Worker": {
                "replicas": workers.replicas,
                # 128 and above is worth another pod, anything below ends the job: see `errors`.
                "restartPolicy": "ExitCode",
                "template": worker_pod(config, restart=None).template(),
            }
        },
    }
    if workers.elastic:
        spec["elasticPolicy"] = {
            "minReplicas": workers.least,
            "maxReplicas": workers.most,
            "maxRestarts": config.elastic.max_restarts,
        }
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": meta(config, Names(config.run).train, WORKER, extra_labels=queue_labels(config)).manifest(),
        "spec": spec,
    }


def _run_policy(config: RunConfig) -> dict[str, Any]:
    section = config.kubernetes
    # Of a job that is over, pods that still run go, and those that ended stay to be read.
    policy: dict[str, Any] = {"cleanPodPolicy": "Running"}
    if section.suspend:  # never false: Kueue sets it, and applying the job again would let it loose
        policy["suspend"] = True
    if section.ttl is not None:
        policy["ttlSecondsAfterFinished"] = section.ttl
    if section.scheduler.name or section.scheduler.min_available:
        # Left to the operator it would be all workers, and an elastic job would wait for its largest size.
        policy["schedulingPolicy"] = {"minAvailable": section.scheduler.min_available or section.workers.least}
        if section.priority_class is not None:
            policy["schedulingPolicy"]["priorityClass"] = section.priority_class
    return policy
