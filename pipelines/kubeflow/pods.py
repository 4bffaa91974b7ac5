"""What the pods of a run in Kubeflow tell, to whoever has a login to its cluster. Called by `follow`.

Kubeflow's own words for a task that failed, or does not begin, are empty. Where there is no login, or no right to list
pods, nothing is told and nothing fails: to follow a run takes Kubeflow alone.
"""

from __future__ import annotations

from typing import Any

from shardline.components.common.errors import ShardlineError
from shardline.components.common.kubernetes.client import Client
from shardline.components.elasticity import jobstate

#: Kubeflow Pipelines puts it on every pod of a run.
RUN_LABEL = "pipeline/runid"


def obstacles(run: str, *, namespace: str) -> list[str]:
    """What keeps pods of the run with that id from running."""
    return jobstate.obstacles(_pods(run, namespace))


def last_words(run: str, *, namespace: str) -> list[str]:
    """How pods of the run with that id ended that ended badly, the first of them first."""
    return jobstate.last_words(_pods(run, namespace))


def _pods(run: str, namespace: str) -> list[dict[str, Any]]:
    try:
        client = Client.connect(namespace=namespace, patience=0, timeout=(3.0, 10.0))
        return client.list("Pod", labels={RUN_LABEL: run})
    except ShardlineError:
        return []
