"""A board of a few objects in a Kubernetes namespace: a Lease for each agent, and one ConfigMap for the state.

Called by whatever starts an agent in a pod. Both go when what owns them goes: an agent's Lease with its pod, the state
with the job. The API server compares and swaps by `resourceVersion`. What a large group's state is too large for is in
another ConfigMap, a new one for each generation (`encoding`).

Members that follow watch the state. They do not watch Leases: the API server compares each change of any Lease with
every watch of Leases, and a group's members change theirs all the time. Those few watch them that may have to know all.

Errors: as the client's.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from shardline.components.common.errors import PeerLost, ShardlineError
from shardline.components.common.kubernetes.client import Client
from shardline.components.common.kubernetes.leases import lease
from shardline.components.common.kubernetes.objects import Manifest
from shardline.components.common.kubernetes.refusals import Conflict
from shardline.components.elasticity.group import encoding
from shardline.components.elasticity.group.board import Version
from shardline.components.elasticity.group.kube_records import (
    DETAILS,
    DETAILS_LABEL,
    MEMBER,
    STATE,
    Kept,
    MemberReader,
    StateReader,
    details_of,
    labels_of,
)
from shardline.components.elasticity.group.pace import Pace
from shardline.components.elasticity.group.state import Member, State
from shardline.components.elasticity.group.watched import ThreadWatch, Watch
from shardline.components.elasticity.pod import Pod


class KubernetesBoard:
    """See the module.

    Args:
        group: a name that no other start of the job has; objects' names begin with it.
        most: members that there may be.
        watch: as `ThreadWatch`; clock, pick: of seconds and of what is to be at random.
    """

    poll_seconds = 0.5

    def __init__(
        self,
        client: Client,
        *,
        group: str,
        pod: Pod,
        most: int = 1,
        watch: Callable[..., Watch] = ThreadWatch,
        clock: Callable[[], float] = time.monotonic,
        pick: random.Random | None = None,
    ) -> None:
        self._client, self._group, self._pod = client, group, pod
        self._clock, self._pick = clock, pick or random.Random()
        pace = Pace.of(most, beat=1.0, silence=5.0)
        self.beat_seconds, self.silence_seconds, self.spread_seconds = pace.beat, pace.silence, pace.spread
        self._states = watch(client, "ConfigMap", name=group, spread=pace.spread)
        self._leases = watch(client, "Lease", labels=labels_of(group), spread=pace.beat / 2)
        self._state, self._members = StateReader(client, group), MemberReader()
        self._known: tuple[State | None, Version] = (None, None)
        self._ask_at = self._list_at = self._behind_since = -float("inf")
        self._awaited: tuple[str, float] = ("", 0.0)
        self._listed: list[Member] = []
        self._beat: tuple[str, int] = ("", 0)

    def state(self) -> tuple[State | None, Version]:
        with self._lost():
            self._known = self._state.read()
        return self._known

    def followed(self) -> tuple[State | None, Version]:
        found = self._states.found()
        if found is None:
            # Nobody else may ask at that moment: with the server all members have lost what they watched.
            if self._clock() >= self._ask_at:
                self._ask_at = self._clock() + self.poll_seconds + self._pick.uniform(1, 2) * self.spread_seconds
                return self.state()
            return self._known
        told = found.get(self._group)
        if told is None:
            self._known = None, None
        elif not self._is_known(told) and self._is_due(told):
            with self._lost():
                state, version = self._state.of(told)
            if state is None:
                return self.state()  # replaced meanwhile
            if self._known[0] is None or state.age >= self._known[0].age:
                self._known = state, version
        return self._known

    def swap(self, version: Version, state: State) -> bool:
        text, packed = encoding.encoded(state)
        before = version.details if isinstance(version, Kept) else None
        after = encoding.digest(packed) if packed is not None else None
        value = self._object(self._group, data={STATE: text}, labels=labels_of(self._group))
        with self._lost():
            if after is not None and after != before:
                details = self._object(
                    details_of(self._group, after), binaryData={DETAILS: packed}, labels={DETAILS_LABEL: self._group}
                )
                # One of that name is the same: it was made by a request whose answer was lost.
                with contextlib.suppress(Conflict):
                    self._client.create(details)
            try:
                if not isinstance(version, Kept):
                    self._client.create(value)
                else:
                    value["metadata"]["resourceVersion"] = version.resource
                    if self._client.patch("ConfigMap", self._group, value) is None:
                        return False
            except Conflict:
                return False
        if before is not None and before != after:
            with contextlib.suppress(ShardlineError):  # it goes with the job, at the latest
                self._client.delete("ConfigMap", details_of(self._group, before))
        return True

    def members(self, names: Collection[str] | None = None) -> list[Member]:
        if names is not None:
            with self._lost():
                found = [self._client.get("Lease", self._name(name)) for name in sorted(names)]
            return self._members.of([each for each in found if each is not None])
        told = self._leases.found()
        if told is not None and not self._is_behind(told):
            return self._members.of(told.values())
        if self._clock() >= self._list_at:
            self._list_at = self._clock() + self.beat_seconds / 2
            with self._lost():
                self._listed = self._members.of(self._client.list("Lease", labels=labels_of(self._group)))
        return self._listed

    def put(self, member: Member) -> None:
        name = self._name(member.id)
        shown = lease(
            name,
            holder=member.id,
            seconds=round(self.silence_seconds),
            annotations={MEMBER: json.dumps(member.to_json())},
            labels=labels_of(self._group),
            ownerReferences=[self._pod.reference],
        )
        with self._lost():
            if self._client.patch("Lease", name, shown) is None:
                self._client.create(shown)
        self._beat = name, member.beat

    def leave(self, member: str) -> None:
        self._client.delete("Lease", self._name(member))

    def _is_known(self, told: Manifest) -> bool:
        version = self._known[1]
        return isinstance(version, Kept) and version.resource == told["metadata"]["resourceVersion"]

    def _is_due(self, told: Manifest) -> bool:
        """Whether it is this member's turn to read the details that it lacks: all have reason to at the same moment."""
        lacking = self._state.lacks(told)
        if lacking is None:
            return True
        if self._awaited[0] != lacking:
            self._awaited = lacking, self._clock() + self._pick.uniform(0, self.spread_seconds)
        return self._clock() >= self._awaited[1]

    def _is_behind(self, told: Mapping[str, Manifest]) -> bool:
        """Whether the watch has been silent about this member's own record, and is to begin anew."""
        name, beat = self._beat
        mine = self._members.of([told[name]]) if name in told else []
        if not name or (mine and mine[0].beat >= beat):
            self._behind_since = self._clock()
        if self._clock() - self._behind_since <= 2 * self.beat_seconds:
            return False
        self._leases.drop()
        self._behind_since = self._clock()
        return True

    @contextlib.contextmanager
    def _lost(self) -> Iterator[None]:
        """What is watched may have been cut off where the server does not answer, and say nothing."""
        try:
            yield
        except PeerLost:
            self._states.drop()
            self._leases.drop()
            # When it is back each member finds out by a beat of its own, and they are spread.
            self._ask_at = -float("inf")
            raise

    def _name(self, member: str) -> str:
        return f"{self._group}-{member}"

    def _object(self, name: str, *, labels: Mapping[str, str], **content: Any) -> Manifest:
        owner = self._pod.controller or self._pod.reference
        metadata = {"name": name, "labels": labels, "ownerReferences": [owner]}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, **content}
