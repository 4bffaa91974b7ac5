"""A Lease: that somebody is there, for others to see. Pure. Called by whatever holds one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from shardline.components.common.kubernetes.objects import Manifest


def lease(name: str, *, holder: str, seconds: int, **metadata: Any) -> Manifest:
    """The Lease `name` as `holder` has just renewed it.

    Args:
        seconds: without another renewal, after which it counts for nothing.
        metadata: more of it, such as labels and resourceVersion.
    """
    spec = {
        "holderIdentity": holder,
        "leaseDurationSeconds": seconds,
        "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
    }
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, **metadata},
        "spec": spec,
    }
