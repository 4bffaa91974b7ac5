"""A training job that goes to other nodes while it runs, pod by pod.

Called by `shardline move`. The template that all pods of the job share is changed first, so that what is made anew goes
to the destination; then each pod that is elsewhere is deleted with its grace: its workers save, the group goes on
without it, and takes it in again where it comes back. Where the job may have one more worker, that one comes first and
leaves last, so that as many train as before. Called again, it goes on where it was.

Errors: the client's; `UserError` for a destination that cannot be; `EnvironmentLacking` where a pod finds no place.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from shardline.components.common.errors import (
    EXIT_PEER_LOST,
    EnvironmentLacking,
    PeerLost,
    RecordedError,
    ShardlineError,
    UserError,
)
from shardline.components.common.kubernetes.avoidance import affinity, avoiding, terms_of
from shardline.components.common.kubernetes.client import Client
from shardline.components.common.kubernetes.names import RUN_LABEL, selector
from shardline.components.common.kubernetes.objects import Manifest
from shardline.components.common.kubernetes.pods import WORKER
from shardline.components.common.kubernetes.refusals import Conflict
from shardline.components.elasticity import jobstate
from shardline.components.elasticity.group.kube_records import group_of, read_members, read_state
from shardline.components.elasticity.launcher import KIND
from shardline.components.elasticity.operator import facts
from shardline.components.elasticity.operator.facts import Node

_POLL_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class Destination:
    """Where a job is to go.

    Attributes:
        labels: that a node has to have; off: nodes to leave, by name.
    """

    labels: Mapping[str, str]
    off: Collection[str] = ()

    def takes(self, node: Node) -> bool:
        has = node.labels
        return node.name not in self.off and all(has.get(key) == value for key, value in self.labels.items())


@dataclass(frozen=True, kw_only=True)
class Moved:
    """One pod that went from a node to another; `seconds` until its agent took part again."""

    pod: str
    origin: str
    node: str
    seconds: float


def redirected(job: Manifest, destination: Destination) -> tuple[Destination, Manifest]:
    """The destination with all that the job asked of its nodes before, and what to change of the job. Pure."""
    spec = jobstate.workers_of(job)["template"]["spec"]
    labels = {**(spec.get("nodeSelector") or {}), **destination.labels}
    terms = avoiding(terms_of(spec), destination.off)
    change = {"nodeSelector": labels, "affinity": affinity(terms)}
    patch = {"spec": jobstate.with_workers(template={"spec": change})}
    return Destination(labels=labels, off=destination.off), patch


def leaving(pods: Sequence[Manifest], nodes: Sequence[Node], destination: Destination) -> list[Manifest]:
    """The pods that are not where they are to go, those first that have no node yet. Pure."""
    good = {node.name for node in nodes if destination.takes(node)}
    found = [pod for pod in pods if _lives(pod) and pod["spec"].get("nodeName") not in good]
    return sorted(found, key=lambda pod: (pod["spec"].get("nodeName") is not None, pod["metadata"]["name"]))


class Mover:
    """Moves the job of one run.

    Args:
        name: of the job, and the run.
        tell: shows a line.
        patience: seconds in which a pod has to be back.
    """

    def __init__(self, client: Client, *, name: str, tell: Callable[[str], None], patience: float) -> None:
        self._client, self._name = client, name
        self._tell, self._patience = tell, patience

    def move(self, destination: Destination) -> list[Moved]:
        """Return when every pod of the job is at the destination, or the job has ended."""
        job = self._job()
        if jobstate.phase_of(job) != "running":
            raise UserError(
                f"is {jobstate.phase_of(job)}: only a job that runs can be moved",
                where=f"{KIND} {self._name}",
                hint="set kubernetes.node_selector, or start it with `shardline render --leave-out NODE`",
            )
        destination = self._redirect(destination)
        pods = leaving(self._pods(), self._nodes(), destination)
        if not pods:
            return []
        workers, most = jobstate.workers_of(job)["replicas"], job["spec"]["elasticPolicy"]["maxReplicas"]
        members = len(self._ranks(job))
        grows = workers < most
        if grows:
            self._tell(f"one more worker comes first: {workers + 1}")
            self._scale(workers + 1)
            self._wait_for(job, f"{self._name}-worker-{workers}", uid="", members=members)
        moved = []
        for pod in pods:
            if (found := self._replace(job, pod, members=members)) is None:
                break
            moved.append(found)
            self._tell(f"{found.pod}: from {found.origin} to {found.node} in {found.seconds:.0f} s")
        if grows and jobstate.phase_of(self._job()) == "running":
            self._scale(workers)
        return moved

    def _redirect(self, destination: Destination) -> Destination:
        """Have new pods go to the destination only; it with all that the job asks of its nodes."""
        while True:
            job = self._job()
            whole, change = redirected(job, destination)
            if not any(whole.takes(node) and node.ready and node.open for node in self._nodes()):
                labels = ", ".join(f"{key}={value}" for key, value in whole.labels.items()) or "any label"
                raise UserError(
                    f"no node that is ready and not left out has {labels}",
                    where="--to" if destination.labels else "--off",
                    hint="`kubectl get nodes --show-labels` shows what there is; nothing was changed",
                )
            change["metadata"] = {"resourceVersion": job["metadata"]["resourceVersion"]}
            try:
                self._client.patch(KIND, self._name, change)
                return whole
            except Conflict:
                continue  # its status changes all the time

    def _replace(self, job: Manifest, pod: Manifest, *, members: int) -> Moved | None:
        """Delete a pod and wait for the one in its place; None when the job ended meanwhile."""
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        began = time.monotonic()
        self._client.delete("Pod", name, uid=uid)
        node = self._wait_for(job, name, uid=uid, members=members)
        if node is None:
            return None
        origin = pod["spec"].get("nodeName") or "no node"
        return Moved(pod=name, origin=origin, node=node, seconds=time.monotonic() - began)

    def _wait_for(self, job: Manifest, name: str, *, uid: str, members: int) -> str | None:
        """Wait until the pod `name`, another one than `uid`, is ready and as many train as before; its node."""
        deadline = time.monotonic() + self._patience
        while True:
            now = self._job()
            phase = jobstate.phase_of(now)
            if phase == "succeeded":
                return None
            if phase == "failed":
                message = f"the job failed while it moved: {jobstate.reason_of_failure(now)}"
                raise RecordedError({"message": message, "exit_code": EXIT_PEER_LOST})
            pod = self._client.get("Pod", name)
            if pod is not None and pod["metadata"]["uid"] != uid and self._takes_part(job, pod, of=members):
                return str(pod["spec"]["nodeName"])
            if time.monotonic() > deadline:
                raise self._stuck(name, pod)
            time.sleep(_POLL_SECONDS)

    def _stuck(self, name: str, pod: Manifest | None) -> ShardlineError:
        why = jobstate.obstacles([pod] if pod is not None else [])
        hint = "make room, and call it again: it goes on where it was; pods that have not moved are where they were"
        if why:
            return EnvironmentLacking("; ".join(why), where=f"{KIND} {self._name}", hint=hint)
        return PeerLost(f"{name} does not train after {self._patience:.0f} s", where=f"{KIND} {self._name}", hint=hint)

    def _takes_part(self, job: Manifest, pod: Manifest, *, of: int) -> bool:
        """Whether the agent in a pod is warm, as a spare or in a generation of at least so many."""
        members = read_members(self._client, group_of(job["metadata"]))
        warm = any(member.round and member.id.endswith(pod["metadata"]["uid"][:8]) for member in members)
        return warm and len(self._ranks(job)) >= of

    def _ranks(self, job: Manifest) -> dict[str, int]:
        """Those that train now; none while they gather."""
        state = read_state(self._client, group_of(job["metadata"]))
        return state.ranks if state is not None and state.phase == "running" else {}

    def _scale(self, workers: int) -> None:
        self._client.patch(KIND, self._name, {"spec": jobstate.with_workers(replicas=workers)})

    def _job(self) -> Manifest:
        job = self._client.get(KIND, self._name)
        if job is None or job["metadata"].get("labels", {}).get(RUN_LABEL) != self._name:
            what = "is not there" if job is None else "is another run's"
            raise UserError(what, where=f"{KIND} {self._name}", hint="start the run's training first")
        return job

    def _nodes(self) -> list[Node]:
        return [facts.node(found) for found in self._client.list("Node")]

    def _pods(self) -> list[Manifest]:
        return self._client.list("Pod", labels=selector(self._name, WORKER))


def _lives(pod: Manifest) -> bool:
    return "deletionTimestamp" not in pod["metadata"] and pod.get("status", {}).get("phase") in ("Pending", "Running")
