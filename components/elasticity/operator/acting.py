"""All that the operator does to objects of the cluster. Called by `turn`, in one thread.

It patches a job's labels, annotations, number of workers and where its pods may go, deletes jobs and pods, and makes
Events: no finalizer, no status. A right that lacks, or an object that changed meanwhile, costs this act alone; the next
round decides anew.

Errors: `ClusterLost` when the API server is away, or another process may act by now.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from shardline.components.common.errors import ShardlineError
from shardline.components.common.kubernetes.client import Client
from shardline.components.common.kubernetes.refusals import ClusterLost, Conflict
from shardline.components.elasticity import jobstate, workflow
from shardline.components.elasticity.launcher import KIND
from shardline.components.elasticity.operator import badnodes, facts, notices
from shardline.components.elasticity.operator.facts import Job, Pod
from shardline.components.elasticity.operator.notices import Limit, Notice
from shardline.components.elasticity.operator.settings import RESIZED
from shardline.components.elasticity.operator.sizes import Resize


@dataclass(frozen=True)
class Resized:
    """What was last done to a job's size, as its annotation has it; `seconds` ago."""

    before: int
    after: int
    setbacks: int
    seconds: float

    @classmethod
    def of(cls, job: Job, *, now: float) -> Resized | None:
        """None for a job whose size was never changed.

        Args:
            now: seconds since the epoch.
        """
        try:
            told = json.loads(job.annotations[RESIZED])
            at = datetime.fromisoformat(told["at"]).timestamp()
            return cls(int(told["from"]), int(told["to"]), int(told["setbacks"]), max(0.0, now - at))
        except (KeyError, ValueError, TypeError):
            return None  # never, or a person has written it

    @property
    def grew(self) -> bool:
        return self.after > self.before


def setbacks(before: Resized | None, change: Resize) -> int:
    """How often, one after the other, a job will have grown and had no room after all."""
    if before is None:
        return 0
    if change.setback:
        return before.setbacks + before.grew
    return 0 if before.grew else before.setbacks


@dataclass
class Hands:
    """Acts on the cluster of `client`.

    Args:
        instance: this process, for Events.
        tell: shows a line.
        may_act: whether this process is still the one that acts; asked before each act.
    """

    client: Client
    instance: str
    tell: Callable[[str], None]
    may_act: Callable[[], bool]
    limit: Limit = field(default_factory=Limit)

    def say(self, job: Job, notice: Notice) -> None:
        """As an Event of the job and as a line, unless enough was said."""
        if not self.limit.allows(job.uid, notice, now=time.monotonic()):
            return
        self.tell(f"{job.namespace}/{job.name}: {notice.reason}: {notice.message}")
        made = notices.event(job, notice, instance=self.instance)
        name = made["metadata"]["name"]
        with self._trying(job, "tell of it"):
            try:
                self.client.create(made)
            except Conflict:
                if not notice.once and (found := self.client.get("Event", name, namespace=job.namespace)):
                    self.client.patch("Event", name, notices.again(found), namespace=job.namespace)

    def mark(self, job: Job, change: dict[str, Any]) -> None:
        """Change its labels and annotations."""
        with self._trying(job, "mark it"):
            self.client.patch(KIND, job.name, change, namespace=job.namespace)

    def resize(self, job: Job, change: Resize) -> None:
        """Give it another number of workers, unless it was changed since it was looked at."""
        with self._trying(job, "resize it"):
            found = self.client.get(KIND, job.name, namespace=job.namespace)
            if found is None or jobstate.workers_of(found).get("replicas") != job.replicas:
                return
            now = datetime.now(UTC)
            told = {
                "at": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
                "from": job.replicas,
                "to": change.workers,
                "setbacks": setbacks(Resized.of(job, now=now.timestamp()), change),
                "reason": change.reason,
            }
            self.client.patch(
                KIND,
                job.name,
                {
                    "metadata": {
                        "resourceVersion": found["metadata"]["resourceVersion"],
                        "annotations": {RESIZED: json.dumps(told, ensure_ascii=False)},
                    },
                    "spec": jobstate.with_workers(replicas=change.workers),
                },
                namespace=job.namespace,
            )
            self.say(job, Notice("Resized", f"from {job.replicas} to {change.workers} workers: {change.reason}"))

    def keep_away(self, job: Job, aside: Collection[str]) -> None:
        """Have no new pod of it on nodes that are set aside, as it is now."""
        with self._trying(job, "keep it away from nodes"):
            found = self.client.get(KIND, job.name, namespace=job.namespace)
            there = facts.job(found) if found is not None else None
            if found is None or there is None or (change := badnodes.change(there, aside)) is None:
                return
            change["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"]
            self.client.patch(KIND, job.name, change, namespace=job.namespace)
            nodes = ", ".join(sorted(aside)) or "none"
            self.say(job, Notice("NodesSetAside", f"no new pod goes to nodes that are set aside: {nodes}"))

    def move(self, job: Job, pod: Pod) -> None:
        """Delete a pod, with its grace, so that it is made again on another node."""
        with self._trying(job, f"delete pod {pod.name}"):
            if self.client.delete("Pod", pod.name, namespace=pod.namespace, uid=pod.uid):
                self.say(job, Notice("PodMoved", f"{pod.name} leaves node {pod.node}, which is set aside", "Warning"))

    def is_cancelled(self, job: Job) -> bool:
        """Whether a person has cancelled the Workflow that it belongs to."""
        cancelled = False
        if job.owner is not None:
            with self._trying(job, f"look at Workflow {job.owner['name']}"):
                cancelled = workflow.was_cancelled(self.client, job.owner, namespace=job.namespace)
        return cancelled

    def end(self, job: Job, notice: Notice) -> None:
        """Delete it, and with it its pods."""
        self.say(job, notice)
        with self._trying(job, "delete it"):
            self.client.delete(KIND, job.name, namespace=job.namespace, uid=job.uid)

    def force(self, job: Job, pod: Pod, *, seconds: float) -> None:
        """Take a pod out of the API server, whatever its node does."""
        with self._trying(job, f"delete pod {pod.name}"):
            if self.client.delete("Pod", pod.name, namespace=pod.namespace, uid=pod.uid, grace=0):
                text = f"{pod.name} was to end and node {pod.node} has not been ready for {seconds:.0f} s"
                self.say(job, Notice("PodForceDeleted", f"{text}: its name is free again", "Warning"))

    @contextmanager
    def _trying(self, job: Job, what: str) -> Iterator[None]:
        if not self.may_act():
            raise ClusterLost("its Lease could not be renewed, and another process may act by now")
        try:
            yield
        except ClusterLost:
            raise
        except Conflict:
            return  # somebody else was first
        except ShardlineError as error:
            self.tell(f"{job.namespace}/{job.name}: cannot {what}: {error}")
