"""The train step of a pipeline on a cluster: what `launcher` needs, from the config and the pod that the step runs in.

Called by the train component. A step of `shardline run` trains in its own pod or machine: it works under a lease that
it was lent.
"""

from __future__ import annotations

import os
import sys
import uuid
from typing import Any

from shardline.components.common.config import Loaded
from shardline.components.common.errors import ShardlineError
from shardline.components.common.kubernetes.client import Client
from shardline.components.common.kubernetes.render import render
from shardline.components.common.owner import FENCE_VARIABLE
from shardline.components.common.runfolder import run_storage
from shardline.components.common.storage import Storage
from shardline.components.elasticity import workflow
from shardline.components.elasticity.budget.nodes import BadNodes
from shardline.components.elasticity.budget.verdict import Limits
from shardline.components.elasticity.launcher import Launch, launch
from shardline.components.elasticity.pod import in_cluster, this_pod


def is_here(loaded: Loaded) -> bool:
    """Whether training is a job of its own."""
    return in_cluster() and FENCE_VARIABLE not in os.environ and loaded.config.kubernetes.image is not None


def train(loaded: Loaded) -> None:
    """Have the run trained by a job of the cluster.

    Raises:
        ShardlineError: what ended it.
        Stopped: this step was ended; the job goes on, unless the pipeline's run was cancelled.
    """
    client = Client.connect(namespace=loaded.config.kubernetes.namespace)
    pod = this_pod(client)
    found = client.get(workflow.KIND, pod.workflow, namespace=pod.namespace) if pod.workflow else None
    launch(client, launch_of(client, loaded, step_of=found, identity=f"{pod.name}-{uuid.uuid4().hex[:8]}"))


def launch_of(client: Client, loaded: Loaded, *, step_of: dict[str, Any] | None, identity: str) -> Launch:
    """What to launch for a run.

    Args:
        step_of: the Workflow that the launcher is a step of.
        identity: of the launcher.
    """
    nodes = BadNodes(Storage(loaded.config.storage))
    manifests = render(loaded, only=("train",), aside=nodes.names())
    # An owner in another namespace would have it collected at once.
    if step_of is not None and step_of["metadata"]["namespace"] == client.namespace:
        manifests = [workflow.owned(each, step_of) for each in manifests]
    return Launch(
        manifests=manifests,
        run=run_storage(loaded.config),
        identity=identity,
        limits=Limits.of(loaded.config),
        cancelled=lambda: _cancelled(client, step_of),
        tell=lambda line: print(line, file=sys.stderr, flush=True),
    )


def _cancelled(client: Client, step_of: dict[str, Any] | None) -> bool:
    if step_of is None:
        return False
    try:
        return workflow.was_cancelled(client, step_of["metadata"], namespace=step_of["metadata"]["namespace"])
    except ShardlineError:
        return False  # nobody said so: what outlives its Workflow is ended by whoever sees it next
