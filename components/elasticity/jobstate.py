"""What a PyTorchJob and its pods tell of how training is: a phase, and in words what keeps a pod from running. Pure:
objects as the API server gives them, in; facts out.

Called by `launcher`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from shardline.components.common.errors import EXIT_BUG

Phase = Literal["created", "running", "suspended", "succeeded", "failed"]
_Object = Mapping[str, Any]

#: Why a container waits that will not run without a person.
_STUCK = {
    "ErrImagePull": "its image cannot be pulled",
    "ImagePullBackOff": "its image cannot be pulled",
    "InvalidImageName": "its image has no valid name",
    "ErrImageNeverPull": "its image is not on the node, and may not be pulled",
    "CreateContainerConfigError": "its container cannot be configured",
    "CreateContainerError": "its container cannot be created",
    "RunContainerError": "its container cannot be started",
}


def workers_of(job: _Object) -> Mapping[str, Any]:
    """The specification of a PyTorchJob's workers."""
    found: Mapping[str, Any] = job["spec"]["pytorchReplicaSpecs"]["Worker"]
    return found


def with_workers(**changes: Any) -> dict[str, Any]:
    """A merge patch of a PyTorchJob's `spec` that changes the specification of its workers."""
    return {"pytorchReplicaSpecs": {"Worker": changes}}


def phase_of(job: _Object) -> Phase:
    """The phase of a PyTorchJob, from its conditions."""
    status = {each["type"]: each["status"] == "True" for each in job.get("status", {}).get("conditions") or []}
    for condition, phase in _PHASES:
        if status.get(condition):
            return phase
    return "created"


_PHASES: tuple[tuple[str, Phase], ...] = (
    ("Succeeded", "succeeded"),
    ("Failed", "failed"),
    ("Suspended", "suspended"),
    ("Running", "running"),
)


def reason_of_failure(job: _Object) -> str:
    """What the operator says about a job that failed."""
    for each in job.get("status", {}).get("conditions") or []:
        if each["type"] == "Failed" and each["status"] == "True":
            return str(each.get("message") or each.get("reason") or "")
    return ""


def obstacles(pods: Iterable[_Object], events: Sequence[_Object] = ()) -> list[str]:
    """What keeps pods from running, a line for each pod that waits for something other than its turn.

    Args:
        events: of the namespace; those about a job that could make no pods are told, too.
    """
    found = [line for pod in pods if (line := _obstacle(pod))]
    refused = {
        str(event["message"])
        for event in events
        if event.get("type") == "Warning" and event.get("reason") in ("FailedCreate", "FailedCreatePod")
    }
    return [*found, *sorted(refused)]


def _obstacle(pod: _Object) -> str | None:
    name, status = pod["metadata"]["name"], pod.get("status", {})
    for condition in status.get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return f"{name} is not scheduled: {condition.get('message') or condition.get('reason')}"
    for container in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        waiting = container.get("state", {}).get("waiting") or {}
        if waiting.get("reason") in _STUCK:
            return f"{name}: {_STUCK[waiting['reason']]}: {waiting.get('message') or waiting['reason']}"
    return None


def last_words(pods: Iterable[_Object]) -> list[str]:
    """What pods that ended badly said last, the first of them first."""
    return [
        f"{name} ended with exit code {ended['exitCode']}"
        + (f" ({ended['reason']})" if ended.get("reason") not in (None, "Error") else "")
        + (f":\n{ended['message'].strip()}" if ended.get("message") else "")
        for name, ended in _ended_badly(pods)
    ]


def exit_code_of(pods: Iterable[_Object]) -> int:
    """That of the pod which ended badly first; a bug's, where none tells."""
    return next((int(ended["exitCode"]) for _, ended in _ended_badly(pods)), EXIT_BUG)


def _ended_badly(pods: Iterable[_Object]) -> list[tuple[str, _Object]]:
    """The pods' names and their containers' ends, by time."""
    found = [
        (str(ended.get("finishedAt", "")), str(pod["metadata"]["name"]), ended)
        for pod in pods
        for container in pod.get("status", {}).get("containerStatuses") or []
        if (ended := container.get("state", {}).get("terminated")) and ended.get("exitCode")
    ]
    return [(name, ended) for _, name, ended in sorted(found, key=lambda each: each[:2])]


def is_cancelled(workflow: _Object | None) -> bool:
    """Whether a person ended the pipeline's run, as far as its Workflow tells: KFP's "terminate" sets its deadline to
    0. One that is gone, or that does not say so, was not cancelled: a pod of it was drained, evicted or preempted."""
    if workflow is None:
        return False
    spec = workflow.get("spec", {})
    return spec.get("activeDeadlineSeconds") == 0 or bool(spec.get("shutdown"))
