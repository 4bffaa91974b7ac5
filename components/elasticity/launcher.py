"""The train step on a cluster: the job of a run, created or found, and followed to its end.

Called by the pipeline's train task. The job is named after the run, so that whoever comes again finds it: a launcher
that was killed, drained or started twice never makes a second one. The workers hold the run's lease and do all the
work; a launcher may be away for any time.

Errors: `RecordedError` with what ended the training, or when the job was made again too often; `UserError` for a job of
that name that is not this run's; `Stopped` after a signal, when the job goes on unless a person has cancelled the
pipeline's run.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
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
from shardline.components.elasticity import jobstate
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
        cancelled: whether a person has ended what this launcher is part of; asked after a signal.
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
    with held(client, f"{launch.name}-launcher", identity=launch.identity) as lock:
        try:
            _create(client, launch)
            _follow(client, launch, check=lock.check)
        except Stopped:
            # First of all: the grace may be no more than a second.
            if launch.cancelled():
                client.delete(KIND, launch.name)
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
    phase = jobstate.phase_of(found) if found is not None else None
    if found is not None and (phase == "failed" or (phase == "succeeded" and not _same_config(found, launch.job))):
        if phase == "failed":
            name, uid = f"{KIND} {launch.name}", found["metadata"]["uid"]
            again.count(launch.run, limits=launch.limits, job=name, uid=uid, writer=f"launcher-{launch.identity}")
        launch.tell(f"{KIND} {launch.name} is there from an earlier try and has ended: it is made anew")
        client.delete(KIND, launch.name)
        _wait_until_gone(client, launch.name)
        found = None
    elif found is not None:
        launch.tell(f"{KIND} {launch.name} is there already: following it")
    for manifest in launch.manifests[:-1]:
        client.apply(manifest)
    if found is None:
        with contextlib.suppress(Conflict):  # made by the call before this one, whose answer got lost
            client.create(launch.job)
        launch.tell(f"created {KIND} {launch.name}")


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
