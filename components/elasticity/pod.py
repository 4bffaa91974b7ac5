"""The pod that this process runs in, and what it belongs to.

Called by what runs in pods: the agents of a training job, and the launcher of one.

Errors: the client's; `EnvironmentLacking` where the pod does not say who it is.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import Any

from shardline.components.common.errors import EnvironmentLacking
from shardline.components.common.kubernetes.client import Client

_WORKFLOW_LABEL = "workflows.argoproj.io/workflow"


def in_cluster() -> bool:
    return "KUBERNETES_SERVICE_HOST" in os.environ


@dataclass(frozen=True, kw_only=True)
class Pod:
    """A pod, and an ownerReference to its controller: None for a pod that nobody looks after."""

    name: str
    uid: str
    namespace: str
    labels: dict[str, str]
    controller: dict[str, Any] | None

    @property
    def reference(self) -> dict[str, Any]:
        """An ownerReference to the pod itself."""
        return {"apiVersion": "v1", "kind": "Pod", "name": self.name, "uid": self.uid}

    @property
    def workflow(self) -> str | None:
        """The name of the Workflow that it is a step of."""
        return self.labels.get(_WORKFLOW_LABEL)


def this_pod(client: Client) -> Pod:
    """By POD_NAME and POD_NAMESPACE, or by the host's name, which is a pod's own unless its spec changes it."""
    name = os.environ.get("POD_NAME") or socket.gethostname()
    namespace = os.environ.get("POD_NAMESPACE") or client.namespace
    found = client.get("Pod", name, namespace=namespace)
    if found is None:
        raise EnvironmentLacking(
            f"there is no pod {name} in the namespace {namespace}, which this process takes for its own",
            where="POD_NAME",
            hint="set POD_NAME and POD_NAMESPACE by the downward API, as `shardline render` does",
        )
    metadata = found["metadata"]
    owners = [each for each in metadata.get("ownerReferences") or [] if each.get("controller")]
    return Pod(
        name=name,
        uid=metadata["uid"],
        namespace=namespace,
        labels=metadata.get("labels") or {},
        controller={key: owners[0][key] for key in ("apiVersion", "kind", "name", "uid")} if owners else None,
    )
