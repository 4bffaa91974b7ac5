"""A run in Kubeflow, followed to its end, and what really ended it.

Called by `shardline submit --wait` and `shardline submitted --wait`. Kubeflow tells that a task failed and not why, as
its error fields stay empty; the run folder has the reason, classified, which a step leaves there before it ends. Of a
step that could not even begin, or was killed, its pods tell.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from shardline.components.common.errors import (
    EXIT_BUG,
    EnvironmentLacking,
    PeerLost,
    RecordedError,
    ShardlineError,
    Stopped,
    UserError,
    from_record,
)
from shardline.components.common.runfolder import error_file, find_run, read_json, run_storage
from shardline.components.common.steps import STEPS
from shardline.components.common.storage import Storage
from shardline.components.common.streams import read_all
from shardline.components.evaluation.gate import enforce
from shardline.pipelines.kubeflow import pods
from shardline.pipelines.kubeflow.client import Client
from shardline.pipelines.kubeflow.failures import Unreachable
from shardline.pipelines.kubeflow.records import AT_WORK, PART_TASK, TASKS, KubeflowRun, Task
from shardline.pipelines.summary import collect
from shardline.pipelines.watch import Watcher

_POLL_SECONDS = 5.0
#: How long Kubeflow may be away while a run is followed: an upgrade of its API server takes a few minutes.
_PATIENCE_SECONDS = 600.0
#: From a task's start to its step's: scheduling, and the image of some gigabytes. What is in the way is told before.
_SLOW_START_SECONDS = 180.0
_START_SECONDS = 20.0
#: By as much the clocks of a pod and of Kubeflow may differ.
_SKEW = timedelta(seconds=60)

Tell = Callable[[str], None]


def follow(client: Client, run: KubeflowRun, *, tell: Tell, options: str) -> KubeflowRun:
    """Wait until `run` has ended, and show meanwhile how far it is; returns it as it ended.

    Args:
        tell: shows a line to the person who waits.
        options: those with which another command finds this Kubeflow.

    Raises:
        Stopped: the user waits no longer. The run goes on.
        ShardlineError: Kubeflow was away for too long.
    """
    folder = _folder(run)
    try:
        with Watcher(folder, STEPS) if folder else contextlib.nullcontext():
            return _Waiting(client, run, folder, tell).to_the_end()
    except Stopped as stopped:
        stopped.message = f"no longer waiting: run {run.id} goes on in Kubeflow"
        again = f"`shardline submitted {run.id} --wait{options}` waits again"
        stopped.hint = f"{again}, `shardline cancel {run.id}{options}` ends it"
        raise


def _folder(run: KubeflowRun) -> Storage | None:
    """The run folder, or None for a run of another pipeline."""
    try:
        return run_storage(run.config())
    except UserError:
        return None


@dataclass
class _Waiting:
    client: Client
    run: KubeflowRun
    folder: Storage | None
    tell: Tell
    _heard: float = field(default_factory=time.monotonic)
    _since: dict[str, float] = field(default_factory=dict)
    _told: set[str] = field(default_factory=set)

    def to_the_end(self) -> KubeflowRun:
        shown = ""
        while not self.run.ended:
            if self.run.state != shown:
                shown = self.run.state
                self.tell(f"Kubeflow: {shown.lower()}")
            self._look_for_slow_start()
            time.sleep(_POLL_SECONDS)
            self._ask()
        return self.run

    def _ask(self) -> None:
        try:
            self.run = self.client.run(self.run.id)
        except (Unreachable, PeerLost) as error:
            if time.monotonic() - self._heard > _PATIENCE_SECONDS:
                raise
            self._once(f"Kubeflow does not answer, still waiting: {error.message}")
        else:
            self._heard = time.monotonic()

    def _look_for_slow_start(self) -> None:
        """Say what is in the way when a task runs, says Kubeflow, and its step does not begin, or where to look."""
        if self.folder is None:
            return
        tasks = [task for task in self.run.tasks if task.name in TASKS and task.state in AT_WORK]
        # Of a loop there are many with one name, and what is asked is asked once.
        waited = {name: self._waited(name, self.folder) for name in dict.fromkeys(task.name for task in tasks)}
        if any(seconds >= _START_SECONDS for seconds in waited.values()):
            for line in pods.obstacles(self.run.id, namespace=_namespace(self.client)):
                self._once(line)
        for task in tasks:
            if waited[task.name] > _SLOW_START_SECONDS:
                minutes = _SLOW_START_SECONDS / 60
                text = f"{task.name} has written nothing to {self.folder.url} for {minutes:.0f} minutes"
                self._once(f"{text}; {_pods_hint(self.client, task)}")

    def _waited(self, name: str, folder: Storage) -> float:
        """The seconds for which the task of that name has not begun; 0 where that is short, or it has."""
        seconds = time.monotonic() - self._since.setdefault(name, time.monotonic())
        return 0.0 if seconds < _START_SECONDS or self._has_begun(name, folder) else seconds

    def _has_begun(self, name: str, folder: Storage) -> bool:
        with contextlib.suppress(ShardlineError):
            if not any(_begins(event, name) and _since(event, self.run) for event in read_all(folder.at("events"))):
                return False
        self._since[name] = float("inf")  # need not be looked at again
        return True

    def _once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self.tell(text)


def _begins(event: dict[str, Any], name: str) -> bool:
    """Whether `event` is the first one of what the task of that name does."""
    if name == PART_TASK:
        return bool(event["name"] == "sharding.part_started")
    return bool(event["name"] == "step.started" and event["data"]["step"] == name)


def _since(event: dict[str, Any], run: KubeflowRun) -> bool:
    """Whether `event` is of this run in Kubeflow, and not of an earlier one that had the same run folder."""
    return run.created is None or datetime.fromisoformat(event["time"]) >= run.created - _SKEW


def check_outcome(client: Client, run: KubeflowRun, *, tell: Tell) -> None:
    """Return when `run`, which has ended, did what it should.

    Raises:
        GateRefused: the model is not good enough.
        Stopped: it was cancelled.
        ShardlineError: what ended the step that failed, of the class and with the exit code that it had there; or that
            no step left a word of it.
    """
    if run.canceled and run.state != "SUCCEEDED":  # it may have come too late
        stopped = Stopped(f"run {run.id} was cancelled")
        stopped.hint = "submit the same config again: it goes on from here"
        raise stopped
    cause = None
    try:
        folder = find_run(run_storage(run.config()).url, root=None)
        if run.state == "SUCCEEDED":
            evaluation = collect(folder)["evaluation"]
        else:
            cause = recorded_cause(folder, run)
    except ShardlineError as error:
        tell(f"note: what it did cannot be seen from here: {error}")
        evaluation = None
    if run.state != "SUCCEEDED":
        raise cause or _unexplained(client, run)
    if evaluation is not None:
        enforce(evaluation, where=folder.url)


def recorded_cause(folder: Storage, run: KubeflowRun) -> ShardlineError | None:
    """The error that a step of `run` left in the run folder; None when there is none, or that of an earlier run."""
    ended = [event for event in read_all(folder.at("events")) if event["name"] in ("step.failed", "step.stopped")]
    for step in STEPS:
        record = read_json(folder, error_file(step))
        if record and any(_since(event, run) and event["data"]["step"] == step for event in ended):
            return _as_error(step, record, folder)
    return None


def _as_error(step: str, record: dict[str, Any], folder: Storage) -> ShardlineError:
    named = {**record, "message": f"{step}: {record['message']}"}
    error = RecordedError(named) if record.get("exit_code") == EXIT_BUG else from_record(named)
    error.add_note(f"run folder: {folder.url}")
    return error


def _unexplained(client: Client, run: KubeflowRun) -> EnvironmentLacking:
    failed = [task for task in run.tasks if task.state == "FAILED"]
    task = next((each for each in failed if each.name in TASKS), None)
    if task is None:
        hint = f"look at {link(client, run.id)}"
        return EnvironmentLacking(f"run {run.id} failed, and no step left a word of it", hint=hint)
    message = f"{task.name} failed and left no word of it: it was killed, or its pod could not start"
    error = EnvironmentLacking(message, where=f"run {run.id}", hint=_pods_hint(client, task))
    for line in pods.last_words(run.id, namespace=_namespace(client)):
        error.add_note(line)
    return error


def _pods_hint(client: Client, task: Task) -> str:
    pod = task.pod or "POD"
    return f"`kubectl --namespace {_namespace(client)} describe pod {pod}` tells of memory, images, secrets and quota"


def _namespace(client: Client) -> str:
    """Where the pods of runs are."""
    return client.namespace or "kubeflow"


def link(client: Client, run: str) -> str:
    """The page of a run in the Kubeflow UI."""
    return f"{client.host}/#/runs/details/{run}"
