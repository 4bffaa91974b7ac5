"""The Workflow of a pipeline's run, and the training job that belongs to it.

Called by the launcher, which is a step of it, and by the operator. A job may outlive its Workflow's cancellation, when
its launcher was killed at that moment; whoever sees it next ends it.

Errors: the client's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardline.components.common.kubernetes.client import Client
from shardline.components.elasticity.jobstate import is_cancelled

KIND = "Workflow"
_Object = Mapping[str, Any]


def owned(manifest: _Object, workflow: _Object) -> dict[str, Any]:
    """`manifest` with `workflow` as its owner: it is collected with it."""
    owner = {"apiVersion": workflow["apiVersion"], "kind": workflow["kind"]}
    owner |= {key: workflow["metadata"][key] for key in ("name", "uid")}
    return {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": [owner]}}


def owner_of(found: _Object) -> dict[str, Any] | None:
    """The ownerReference to the Workflow that an object belongs to; None for one that was made by hand."""
    owners = found["metadata"].get("ownerReferences") or []
    return next((dict(each) for each in owners if each["kind"] == KIND), None)


def was_cancelled(client: Client, owner: _Object, *, namespace: str | None = None) -> bool:
    """Whether a person has ended the Workflow that an ownerReference, or a mapping with its name, tells of."""
    found = client.get(KIND, owner["name"], namespace=namespace)
    if found is None or owner.get("uid") not in (None, found["metadata"]["uid"]):
        return False  # it is gone, and what it owns is collected
    return is_cancelled(found)
