"""Objects of the API server as the decisions see them. Pure: plain mappings in, facts out.

Called by `watching`, which keeps them for all objects there are: of a pod only what matters here stays in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from shardline.components.common.kubernetes.names import RUN_LABEL, STORAGE_ANNOTATION
from shardline.components.elasticity import jobstate, workflow
from shardline.components.elasticity.operator.demands import Demands, demands_of, quantity

_JOB = "training.kubeflow.org/job-name"
_INDEX = "training.kubeflow.org/replica-index"
_Object = Mapping[str, Any]
Key = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Node:
    name: str
    ready: bool
    open: bool
    labels: Mapping[str, str]
    taints: tuple[_Object, ...]
    allocatable: Mapping[str, Decimal]


@dataclass(frozen=True, kw_only=True)
class Pod:
    """A pod.

    Attributes:
        node: the one it is bound to.
        job: the namespace and name of the PyTorchJob that it belongs to; index: its place among the workers.
        ended: it takes up nothing any more; ending: it was deleted, and is still there.
        obstacle: what keeps it from running, in words; None while it runs or nothing is known against it.
    """

    name: str
    namespace: str
    uid: str
    node: str | None
    job: Key | None
    index: int
    priority: int
    running: bool
    ended: bool
    ending: bool
    obstacle: str | None
    demands: Demands


@dataclass(frozen=True, kw_only=True)
class Job:
    """A PyTorchJob of a run.

    Attributes:
        least, most: of its elasticPolicy; both `replicas` where it is not elastic.
        clean: its cleanPodPolicy.
        managed: what else decides about its size, in words; None: nothing.
        owner: the ownerReference to the Workflow that it belongs to; None: to none.
        demands: of one worker.
    """

    namespace: str
    name: str
    uid: str
    created: str
    run: str
    storage: str | None
    phase: jobstate.Phase
    deleted: bool
    replicas: int
    least: int
    most: int
    clean: str
    managed: str | None
    owner: _Object | None
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    demands: Demands

    @property
    def key(self) -> Key:
        return self.namespace, self.name

    @property
    def over(self) -> bool:
        """Whether there is nothing to look after any more."""
        return self.deleted or self.phase in ("succeeded", "failed")


@dataclass(frozen=True, kw_only=True)
class World:
    """All there is, at one time."""

    jobs: tuple[Job, ...] = ()
    pods: tuple[Pod, ...] = ()
    nodes: tuple[Node, ...] = ()
    _of: dict[Key, list[Pod]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for pod in self.pods:
            if pod.job is not None:
                self._of.setdefault(pod.job, []).append(pod)

    def pods_of(self, job: Job) -> list[Pod]:
        """Its pods, by their place among the workers."""
        return sorted(self._of.get(job.key, ()), key=lambda pod: pod.index)


def node(found: _Object) -> Node:
    spec, status = found.get("spec") or {}, found.get("status") or {}
    conditions = {each["type"]: each["status"] for each in status.get("conditions") or ()}
    return Node(
        name=found["metadata"]["name"],
        ready=conditions.get("Ready") == "True",
        open=not spec.get("unschedulable"),
        labels=found["metadata"].get("labels") or {},
        taints=tuple(spec.get("taints") or ()),
        allocatable={name: quantity(text) for name, text in (status.get("allocatable") or {}).items()},
    )


def pod(found: _Object) -> Pod:
    meta, spec, status = found["metadata"], found["spec"], found.get("status") or {}
    labels = meta.get("labels") or {}
    name, index = labels.get(_JOB), labels.get(_INDEX, "")
    phase = status.get("phase")
    return Pod(
        name=meta["name"],
        namespace=meta["namespace"],
        uid=meta["uid"],
        node=spec.get("nodeName"),
        job=(meta["namespace"], name) if name else None,
        index=int(index) if index.isdecimal() else 0,
        priority=spec.get("priority") or 0,
        running=phase == "Running",
        ended=phase in ("Succeeded", "Failed"),
        ending="deletionTimestamp" in meta,
        obstacle=next(iter(jobstate.obstacles([found])), None) if phase == "Pending" else None,
        demands=demands_of(spec, labels),
    )


def job(found: _Object) -> Job | None:
    """The job, or None for one that has no workers."""
    meta, spec = found["metadata"], found["spec"]
    worker = (spec.get("pytorchReplicaSpecs") or {}).get("Worker")
    if worker is None:
        return None
    elastic, policy = spec.get("elasticPolicy") or {}, spec.get("runPolicy") or {}
    replicas = int(worker.get("replicas") or 1)
    least, most = elastic.get("minReplicas"), elastic.get("maxReplicas")
    template = worker["template"]
    labels = meta.get("labels") or {}
    annotations = meta.get("annotations") or {}
    return Job(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        created=meta["creationTimestamp"],
        run=labels[RUN_LABEL],
        storage=annotations.get(STORAGE_ANNOTATION),
        phase=jobstate.phase_of(found),
        deleted="deletionTimestamp" in meta,
        replicas=replicas,
        least=int(least or most or replicas),
        most=int(most or least or replicas),
        clean=policy.get("cleanPodPolicy") or "None",
        managed=_managed(labels, elastic=elastic, policy=policy),
        owner=workflow.owner_of(found),
        labels=labels,
        annotations=annotations,
        demands=demands_of(template["spec"], (template.get("metadata") or {}).get("labels") or {}),
    )


def _managed(labels: Mapping[str, str], *, elastic: _Object, policy: _Object) -> str | None:
    if elastic.get("metrics"):
        return "elasticPolicy.metrics has a HorizontalPodAutoscaler change the same number"
    if queue := labels.get("kueue.x-k8s.io/queue-name"):
        return f"Kueue has admitted it to the queue {queue} with a fixed number of workers"
    manager = policy.get("managedBy")
    if manager not in (None, "kubeflow.org/training-operator"):
        return f"it is managed by {manager}"
    return None
