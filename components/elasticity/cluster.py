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
from shardline.components.elasticity.budget.nodes import BadNodes
from shardline.components.elasticity.budget.verdict import Limits
from shardline.components.elasticity.jobstate import is_cancelled
from shardline.components.elasticity.launcher import Launch, launch
from shardline.components.elasticity.pod import Pod, in_cluster, this_pod


def is_here(loaded: Loaded) -> bool:
    """Whether training is a job of its own."""
    return in_cluster() and FENCE_VARIABLE not in os.environ and loaded.config.kubernetes.image is not None


def train(loaded: Loaded) -> None:
    """Have the run trained by a job of the cluster.

    Raises:
        ShardlineError: what ended it.
        Stopped: this step was ended; the job goes on, unless the pipeline's run was cancelled.
    """
    namespace = loaded.config.kubernetes.namespace
    client = Client.connect(namespace=namespace)
    pod = this_pod(client)
    workflow = client.get("Workflow", pod.workflow, namespace=pod.namespace) if pod.workflow else None
    nodes = BadNodes(Storage(loaded.config.storage))
    manifests = render(loaded, only=("train",), aside=nodes.names())
    # An owner in another namespace would have it collected at once.
    if workflow is not None and pod.namespace == namespace:
        manifests = [_owned(each, workflow) for each in manifests]
    launch(
        client,
        Launch(
            manifests=manifests,
            run=run_storage(loaded.config),
            identity=f"{pod.name}-{uuid.uuid4().hex[:8]}",
            limits=Limits.of(loaded.config),
            cancelled=lambda: _cancelled(client, pod),
            tell=lambda line: print(line, file=sys.stderr, flush=True),
        ),
    )


def _owned(manifest: dict[str, Any], workflow: dict[str, Any]) -> dict[str, Any]:
    owner = {"apiVersion": workflow["apiVersion"], "kind": workflow["kind"]}
    owner |= {key: workflow["metadata"][key] for key in ("name", "uid")}
    return {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": [owner]}}


def _cancelled(client: Client, pod: Pod) -> bool:
    if pod.workflow is None:
        return False
    try:
        return is_cancelled(client.get("Workflow", pod.workflow, namespace=pod.namespace))
    except ShardlineError:
        return False  # nobody said so: what outlives its Workflow is collected with it
