"""A drill's site on a cluster: the pods of a run's PyTorchJob, that the drill creates or that is there.

Called by `shardline drill --cluster`. Pods that go are replaced by the training operator; the drill
itself brings nothing back.

Errors: the client's; `RecordedError` with what ended the job.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from shardline.components.common.errors import EXIT_BUG, RecordedError, ShardlineError, UserError
from shardline.components.common.kubernetes.client import Client
from shardline.components.common.kubernetes.names import selector
from shardline.components.common.kubernetes.objects import Manifest
from shardline.components.common.kubernetes.pods import WORKER
from shardline.components.common.kubernetes.refusals import Conflict
from shardline.components.common.runfolder import error_file, read_json
from shardline.components.common.storage import Storage
from shardline.components.elasticity import jobstate
from shardline.components.elasticity.drill.ending import stop
from shardline.components.elasticity.drill.plan import Fault, pick
from shardline.components.elasticity.group.kube_records import group_of, read_state
from shardline.components.elasticity.group.state import State
from shardline.components.elasticity.launcher import KIND

_POLL_SECONDS = 1.0
_PATIENCE = 600.0


class Pods:
    """The pods of the job of one run.

    Args:
        manifests: of the run's training, to be created and in the end deleted; none: the job is there, and stays.
        name: of the job.
    """

    def __init__(self, client: Client, *, run: Storage, name: str, manifests: Sequence[Manifest] = ()) -> None:
        self._client, self._run, self._name = client, run, name
        self._manifests = manifests

    def __enter__(self) -> Pods:
        for manifest in self._manifests:
            self._client.apply(manifest)
        return self

    def __exit__(self, *exc: object) -> None:
        # The job last, as it was made: what is left behind otherwise is what it would start again with.
        for manifest in reversed(self._manifests):
            metadata = manifest["metadata"]
            self._client.delete(manifest["kind"], metadata["name"], namespace=metadata.get("namespace"))

    def tend(self) -> None:
        job = self._job()
        phase = jobstate.phase_of(job)
        if phase == "failed":
            raise self._failure(job)
        if phase == "succeeded":
            raise UserError(
                "the run has done its last step before the drill was over",
                where=f"{KIND} {self._name}",
                hint="raise training.steps, or lower --faults, --every or --for",
            )

    def strike(self, fault: Fault) -> tuple[str, float] | None:
        running = [pod for pod in self._pods() if _is_running(pod)]
        match fault.kind:
            case "pod":
                return self._each(pick(running, fault.picks[:1]), "deleted", self._delete)
            case "pod-force":
                return self._each(pick(running, fault.picks[:1]), "deleted without grace", self._remove)
            case "evict":
                return self._each(pick(running, fault.picks[:1]), "evicted", self._evict)
            case "leader":
                leads = [pod for pod in running if self._leads(pod)]
                return self._each(leads, "with the agent that leads deleted without grace", self._remove)
            case "two":
                return self._each(pick(running, fault.picks), "deleted without grace", self._remove)
            case _:
                return self._each(running, "deleted without grace", self._remove)

    def whole(self) -> int | None:
        wanted = jobstate.workers_of(self._job())["replicas"]
        state = self._state()
        if state is None or state.phase != "running" or len(state.ranks) != wanted:
            return None
        return state.generation if sum(map(_is_running, self._pods())) == wanted else None

    def finish(self) -> None:
        """Raises PeerLost for a run that does not end."""
        stop(
            self._run,
            ended=lambda: jobstate.phase_of(self._job()) in ("failed", "succeeded"),
            poll=_POLL_SECONDS,
            patience=_PATIENCE,
        )

    def wait(self) -> None:
        """Return when the run has done its last step, undisturbed."""
        while (phase := jobstate.phase_of(job := self._job())) != "succeeded":
            if phase == "failed":
                raise self._failure(job)
            time.sleep(_POLL_SECONDS)

    def _job(self) -> Manifest:
        job = self._client.get(KIND, self._name)
        if job is None:
            raise UserError("is not there", where=f"{KIND} {self._name}", hint="start the run's training first")
        return job

    def _pods(self) -> list[Manifest]:
        found = self._client.list("Pod", labels=selector(self._name, WORKER))
        return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))

    def _state(self) -> State | None:
        """What the agents have agreed on."""
        with contextlib.suppress(ShardlineError):
            return read_state(self._client, group_of(self._job()["metadata"]))
        return None

    def _leads(self, pod: Manifest) -> bool:
        state, metadata = self._state(), pod["metadata"]
        return state is not None and state.leader.endswith(f"-{metadata['uid'][:8]}")

    def _failure(self, job: Manifest) -> ShardlineError:
        with contextlib.suppress(ShardlineError):
            record = read_json(self._run, error_file("train"))
            if record is not None:
                return RecordedError(record)
        return RecordedError({"message": jobstate.reason_of_failure(job), "exit_code": EXIT_BUG})

    def _each(self, pods: Sequence[Manifest], what: str, do: Callable[[str, str], object]) -> tuple[str, float] | None:
        if not pods:
            return None
        moment = time.time()
        for pod in pods:
            with contextlib.suppress(Conflict):  # it is another one by now: this one is gone
                do(pod["metadata"]["name"], pod["metadata"]["uid"])
        return f"pod {' and '.join(pod['metadata']['name'] for pod in pods)} {what}", moment

    def _delete(self, name: str, uid: str) -> object:
        return self._client.delete("Pod", name, uid=uid)

    def _remove(self, name: str, uid: str) -> object:
        return self._client.delete("Pod", name, uid=uid, grace=0)

    def _evict(self, name: str, uid: str) -> object:
        return self._client.evict(name, uid=uid)


def _is_running(pod: dict[str, Any]) -> bool:
    return pod.get("status", {}).get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
