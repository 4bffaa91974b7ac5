"""A run's training as a TrainJob of Kubeflow Trainer v2 (trainer.kubeflow.org/v1alpha1), of a fixed size. Pure.

Behind the same seam as `pytorchjob`. Trainer v2 has no elastic mode, and its way to override a pod has changed with
each release: so the whole pod stands in a TrainingRuntime of the run's own, of which the TrainJob is an instance.
"""

from __future__ import annotations

from shardline.components.common.config import RunConfig
from shardline.components.common.kubernetes.jobs import failure_policy
from shardline.components.common.kubernetes.names import Names
from shardline.components.common.kubernetes.objects import Manifest
from shardline.components.common.kubernetes.pods import WORKER, meta, queue_labels, worker_pod

_API = "trainer.kubeflow.org/v1alpha1"
#: What Trainer v2 calls the job, and its container, that trains.
_NODE = "node"


def trainjob(config: RunConfig) -> list[Manifest]:
    """The TrainingRuntime of `config`'s run, and its TrainJob."""
    workers, name = config.kubernetes.workers, Names(config.run).train
    job = {
        "template": {
            "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
            "spec": {
                # The run's own budget ends it before: it knows of progress, and this does not.
                "backoffLimit": (config.elastic.restarts_in_window + 1) * workers.replicas,
                "podFailurePolicy": failure_policy(),
                "template": worker_pod(config, container=_NODE).template(),
            },
        }
    }
    runtime = {
        "apiVersion": _API,
        "kind": "TrainingRuntime",
        "metadata": meta(config, name, WORKER, extra_labels={"trainer.kubeflow.org/framework": "torch"}).manifest(),
        "spec": {
            "mlPolicy": {"numNodes": workers.replicas, "torch": {}},
            "template": {"spec": {"replicatedJobs": [{"name": _NODE, **job}]}},
        },
    }
    instance = {
        "apiVersion": _API,
        "kind": "TrainJob",
        "metadata": meta(config, name, WORKER, extra_labels=queue_labels(config)).manifest(),
        "spec": {
            "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": name},
            **({"suspend": True} if config.kubernetes.suspend else {}),
            "trainer": {"numNodes": workers.replicas, "numProcPerNode": 1},
        },
    }
    return [runtime, instance]
