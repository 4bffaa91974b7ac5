"""Pods that a dead node holds. Pure. Called by `turn`.

The pod of a node that is gone was told to end and cannot say that it has: it keeps its name, and the training operator
makes no other of that name. Whether its processes are really gone nobody knows, which is why a person has to ask for
it. One of ours that wakes up does no harm: only the newest generation may commit.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardline.components.elasticity.operator.facts import Job, Pod, World
from shardline.components.elasticity.operator.settings import FORCE_DELETE, Settings


def held(world: World, job: Job) -> list[Pod]:
    """The pods of `job` that end, on nodes that are not ready or not there."""
    ready = {node.name for node in world.nodes if node.ready}
    return [pod for pod in world.pods_of(job) if pod.ending and pod.node is not None and pod.node not in ready]


def is_asked_for(annotations: Mapping[str, str], settings: Settings) -> bool:
    """Whether they may be force-deleted: what the job says, else what the operator was told."""
    said = annotations.get(FORCE_DELETE)
    return said == "true" if said is not None else settings.force_delete
