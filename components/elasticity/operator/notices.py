"""What is said about a job, as an Event of Kubernetes, and how often. Pure.

Called by `acting`. An Event's name follows from what it says, so that one that was there before the operator began is
counted up instead of being made again.
"""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from shardline.components.common.kubernetes.objects import Manifest
from shardline.components.elasticity.operator.facts import Job

SOURCE = "shardline-operator"
#: Seconds in which a job has so many Events at most, and in which none is said again.
_WINDOW, _MOST = 300.0, 10
_AGAIN = 600.0
#: What the API server takes of a message.
_LENGTH = 1024


@dataclass(frozen=True)
class Notice:
    """What to say: `reason` is one word in camel case, as of all Events; `once` for what is never said again."""

    reason: str
    message: str
    kind: Literal["Normal", "Warning"] = "Normal"
    once: bool = False


class Limit:
    """How much is said."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, Notice], float] = {}
        self._times: dict[str, deque[float]] = {}

    def allows(self, uid: str, notice: Notice, *, now: float) -> bool:
        """Whether `notice` may be said about the job `uid` now; it then counts as said."""
        times = self._times.setdefault(uid, deque(maxlen=_MOST))
        before = self._said.get((uid, notice))
        if before is not None and (notice.once or now - before < _AGAIN):
            return False
        if len(times) == _MOST and now - times[0] < _WINDOW:
            return False
        times.append(now)
        self._said[uid, notice] = now
        return True

    def forget(self, uids: set[str]) -> None:
        """Keep what belongs to the jobs `uids` alone."""
        self._said = {key: at for key, at in self._said.items() if key[0] in uids}
        self._times = {uid: times for uid, times in self._times.items() if uid in uids}


def event(job: Job, notice: Notice, *, instance: str) -> Manifest:
    """The Event.

    Args:
        instance: this process.
    """
    message = notice.message[:_LENGTH]
    digest = hashlib.blake2b(f"{job.uid} {notice.reason} {message}".encode(), digest_size=8).hexdigest()
    now = _now()
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{job.name}.{digest}", "namespace": job.namespace},
        "involvedObject": {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "namespace": job.namespace,
            "name": job.name,
            "uid": job.uid,
        },
        "type": notice.kind,
        "reason": notice.reason,
        "message": message,
        "count": 1,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "source": {"component": SOURCE},
        "reportingComponent": SOURCE,
        "reportingInstance": instance,
    }


def again(found: Manifest) -> dict[str, Any]:
    """The change of an Event that is said once more."""
    return {"count": int(found.get("count") or 1) + 1, "lastTimestamp": _now()}


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
