"""The train step on a cluster: the job of a run, created or found, and followed to its end.

Called by the pipeline's train task. The job is named after the run, so that whoever comes again finds it: a launcher
that was killed, drained or started twice never makes a second one. The workers hold the run's lease and do all the
work; a launcher may be away for any time.

The job belongs to the Workflow whose launcher follows it, and is collected with it. What a cancelled Workflow has left,
as its launcher was killed at that moment, is ended by the next launcher, by the operator or by garbage collection.

Errors: `RecordedError` with what ended the training, or when the job was made again too often; `UserError` for a job of
that name that is not this run's; `Stopped` after a signal, when the job goes on unless a person has cancelled the
pipeline's run.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from shardline.components.common.errors import (
    RecordedError,
    ShardlineError,
    Stopped,
    StorageLost,
    UserError,
)
from shardline.components.common.kubernetes.client import Client
from shardline.components.common.kubernetes.refusals import Conflict
from shardline.components.common.runfolder import STATUS_FILE, error_file, read_json
from shardline.components.common.storage import Storage
from shardline.components.elasticity import jobstate, workflow
from shardline.components.elasticity.budget import again
from shardline.components.elasticity.budget.verdict import Limits
from shardline.components.elasticity.lock import held

KIND = "PyTorchJob"
_POLL_SECONDS = 2.0
_PROGRESS_SECONDS = 30.0
#: How long an object that is being deleted is waited for.
_GONE_SECONDS = 300.0
#: By these a job is known as a run's: see `adopted`.
_SAME = ("labels", "shardline.io/run"), ("annotations", "shardline.io/storage")


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What to launch, and for whom.

    Attributes:
        manifests: of the run's training, the job last; complete, with owners and namespace.
        identity: of this launcher, another one for each start of it.
        limits: of how often the job is made again after it failed.
        cancelled: whether a person has ended what this launcher is part of; asked before it acts, and after a signal.
        tell: shows a line.
    """

    manifests: Sequence[dict[str, Any]]
    run: Storage
    identity: str
    limits: Limits
    cancelled: Callable[[], bool]
    tell: Callable[[str], None]

    @property
    def job(self) -> dict[str, Any]:
        return self.manifests[-1]

    @property
    def name(self) -> str:
        return str(self.job["metadata"]["name"])

    @property
    def pods(self) -> dict[str, str]:
        """The labels of the job's pods."""
        return {"training.kubeflow.org/job-name": self.name}


def launch(client: Client, launch: Launch) -> None:
    """Return when the job has ended well."""

    def waiting_for(holder: str) -> None:
        launch.tell(f"{KIND} {launch.name}: {holder} follows it: this one waits until that has ended, or is gone")

    lease = f"{launch.name}-launcher"
    with (
        _ended_if_cancelled(client, launch, acting=False),
        held(client, lease, identity=launch.identity, tell=waiting_for) as lock,
        # First of all, before the Lease is given back: the grace may be no more than a second.
        _ended_if_cancelled(client, launch, acting=True),
    ):
        if launch.cancelled():
            raise Stopped("the pipeline's run was cancelled", signum=signal.SIGTERM)
        _create(client, launch)
        _follow(client, launch, check=lock.check)


@contextlib.contextmanager
def _ended_if_cancelled(client: Client, launch: Launch, *, acting: bool) -> Iterator[None]:
    """End the job when the block is stopped by a signal and a person has cancelled the pipeline's run.

    Args:
        acting: whether this launcher has the Lease; while it waits, the job may be another Workflow's.
    """
    try:
        yield
    except Stopped:
        if launch.cancelled():
            found = client.get(KIND, launch.name)
            if found is not None and (adopted(found, launch.job) if acting else _is_of_same_workflow(found, launch)):
                _delete(client, found)
        raise


def _create(client: Client, launch: Launch) -> None:
    """Have the job there, and what belongs to it; one that failed, or did another config, makes room for another."""
    found = client.get(KIND, launch.name)
    if found is not None and not adopted(found, launch.job):
        raise UserError(
            "is there and not this run's: its labels and annotations name another run or storage",
            where=f"{KIND} {launch.name}",
            hint="delete it, or give this run another name",
        )
    if found is not None and (reason := _is_in_the_way(client, launch, found)):
        launch.tell(f"{KIND} {launch.name} {reason}: it is made anew")
        _delete(client, found)
        _wait_until_gone(client, launch.name)
        found = None
    for manifest in launch.manifests[:-1]:
        client.apply(manifest)
    if found is not None:
        launch.tell(f"{KIND} {launch.name} is there already: following it")
        _take_over(client, launch, found)
        return
    with contextlib.suppress(Conflict):  # made by the call before this one, whose answer got lost
        client.create(launch.job)
    launch.tell(f"created {KIND} {launch.name}")


def _is_in_the_way(client: Client, launch: Launch, found: dict[str, Any]) -> str | None:
    """Why the run's job that is there is not the one to follow; one that failed is counted."""
    phase = jobstate.phase_of(found)
    if "deletionTimestamp" in found["metadata"]:
        return "is there and is being deleted"
    if phase == "failed":
        name, uid = f"{KIND} {launch.name}", found["metadata"]["uid"]
        again.count(launch.run, limits=launch.limits, job=name, uid=uid, writer=f"launcher-{launch.identity}")
    if phase == "failed" or (phase == "succeeded" and not _same_config(found, launch.job)):
        return "is there from an earlier try and has ended"
    owner = workflow.owner_of(found)
    if owner is None or phase == "succeeded" or _is_of_same_workflow(found, launch):
        return None
    if workflow.was_cancelled(client, owner):
        return f"belongs to Workflow {owner['name']}, which was cancelled"
    return None


def _take_over(client: Client, launch: Launch, found: dict[str, Any]) -> None:
    """Have the job belong to the Workflow of this launcher: it would be collected with the one before."""
    if workflow.owner_of(found) is None or _is_of_same_workflow(found, launch):
        return
    owners = launch.job["metadata"].get("ownerReferences")
    client.patch(KIND, launch.name, {"metadata": {"uid": found["metadata"]["uid"], "ownerReferences": owners}})


def _is_of_same_workflow(found: dict[str, Any], launch: Launch) -> bool:
    theirs, ours = workflow.owner_of(found), workflow.owner_of(launch.job)
    return theirs is not None and ours is not None and theirs["uid"] == ours["uid"]


def _delete(client: Client, found: dict[str, Any]) -> None:
    with contextlib.suppress(Conflict):  # somebody has, and there is another by now
        client.delete(KIND, found["metadata"]["name"], uid=found["metadata"]["uid"])


def adopted(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Whether a job that is there is the one that would be made."""

    def marks(job: dict[str, Any]) -> list[Any]:
        return [job["metadata"].get(part, {}).get(key) for part, key in _SAME]

    return marks(found) == marks(wanted)


def _same_config(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Whether a job did what it would do again: its pods mount the config by a name that tells the content."""

    def mounted(job: dict[str, Any]) -> list[str]:
        pod = jobstate.workers_of(job)["template"]["spec"]
        return [each["configMap"]["name"] for each in pod["volumes"] if "configMap" in each]

    return mounted(found) == mounted(wanted)


def _wait_until_gone(client: Client, name: str) -> None:
    deadline = time.monotonic() + _GONE_SECONDS
    while client.get(KIND, name) is not None:
        if time.monotonic() > deadline:
            raise StorageLost("is being deleted and does not go", where=f"{KIND} {name}", hint="see its finalizers")
        time.sleep(_POLL_SECONDS)


def _follow(client: Client, launch: Launch, *, check: Callable[[], None]) -> None:
    told: set[str] = set()
    shown = time.monotonic()
    while True:
        check()
        job = client.get(KIND, launch.name)
        if job is None:
            raise UserError(
                "was deleted while it was followed",
                where=f"{KIND} {launch.name}",
                hint="start again: training goes on from its newest checkpoint",
            )
        phase = jobstate.phase_of(job)
        pods = client.list("Pod", labels=launch.pods)
        if phase == "succeeded":
            return
        if phase == "failed":
            raise _failure(launch, job, pods)
        wanted = jobstate.workers_of(job)["replicas"]
        # Why there are too few pods, the events tell; there may be many of them.
        for line in jobstate.obstacles(pods, _events(client, launch) if len(pods) < wanted else ()):
            if line not in told:
                told.add(line)
                launch.tell(line)
        if time.monotonic() - shown >= _PROGRESS_SECONDS:
            shown = time.monotonic()
            launch.tell(_progress(launch, phase, pods))
        time.sleep(_POLL_SECONDS)


def _events(client: Client, launch: Launch) -> list[dict[str, Any]]:
    return [each for each in client.list("Event", labels={}) if each["involvedObject"].get("name") == launch.name]


def _progress(launch: Launch, phase: str, pods: Sequence[dict[str, Any]]) -> str:
    running = sum(pod.get("status", {}).get("phase") == "Running" for pod in pods)
    status: dict[str, Any] = {}
    with contextlib.suppress(ShardlineError):
        status = read_json(launch.run, STATUS_FILE) or {}
    step = f"step {status['step']:,}" if status.get("phase") == "train" and "step" in status else "no step yet"
    return f"{launch.name}: {phase}, {running} of {len(pods)} workers running, {step}"


def _failure(launch: Launch, job: dict[str, Any], pods: Sequence[dict[str, Any]]) -> ShardlineError:
    """What ended the job: as the workers recorded it, else as their pods tell."""
    record: dict[str, Any] | None = None
    with contextlib.suppress(ShardlineError):
        record = read_json(launch.run, error_file("train"))
    words = jobstate.last_words(pods)
    if record is None:
        message = words[0] if words else jobstate.reason_of_failure(job) or f"{KIND} {launch.name} failed"
        record = {"message": message, "exit_code": jobstate.exit_code_of(pods)}
    error = RecordedError(record)
    for line in words:
        error.add_note(line)
    return error
