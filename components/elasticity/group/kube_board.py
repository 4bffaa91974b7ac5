"""A board of a few objects in a Kubernetes namespace: a Lease for each agent, and one ConfigMap for the state.

Called by whatever starts an agent in a pod. Both go when what owns them goes: an agent's Lease with its pod, the state
with the job. The API server compares and swaps by `resourceVersion`.

Errors: as the client's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from shardline.components.common.errors import DamagedData
from shardline.components.common.kubernetes.client import Client
from shardline.components.common.kubernetes.leases import lease
from shardline.components.common.kubernetes.refusals import Conflict
from shardline.components.elasticity.group.board import Version
from shardline.components.elasticity.group.state import Member, State
from shardline.components.elasticity.pod import Pod

GROUP_LABEL = "shardline.io/group"
_MEMBER = "shardline.io/member"
_STATE = "state"


def group_of(owner: Mapping[str, Any]) -> str:
    """The group of the agents in the pods of `owner`, by its `name` and `uid`."""
    return f"{owner['name']}-{owner['uid'][:8]}"


def read_state(client: Client, group: str) -> tuple[State | None, Version]:
    """As `Board.state`; for those, too, who are no member."""
    found = client.get("ConfigMap", group)
    if found is None:
        return None, None
    try:
        return State.from_json(json.loads(found["data"][_STATE])), found["metadata"]["resourceVersion"]
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedData(
            "is not a group's state", where=f"ConfigMap {group}", hint="delete it and apply the job again"
        ) from error


def read_members(client: Client, group: str) -> list[Member]:
    """As `Board.members`; for those, too, who are no member."""
    found = []
    for each in client.list("Lease", labels={GROUP_LABEL: group}):
        text = each["metadata"].get("annotations", {}).get(_MEMBER)
        if text and "deletionTimestamp" not in each["metadata"]:
            found.append(Member.from_json(json.loads(text)))
    return sorted(found, key=lambda member: member.id)


class KubernetesBoard:
    """See the module.

    Args:
        group: a name that no other start of the job has; objects' names begin with it.
    """

    beat_seconds = 1.0
    poll_seconds = 0.5
    silence_seconds = 5.0

    def __init__(self, client: Client, *, group: str, pod: Pod) -> None:
        self._client = client
        self._group = group
        self._pod = pod

    def state(self) -> tuple[State | None, Version]:
        return read_state(self._client, self._group)

    def swap(self, version: Version, state: State) -> bool:
        metadata = {"name": self._group, **self._belonging(self._pod.controller or self._pod.reference)}
        value = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata,
            "data": {_STATE: json.dumps(state.to_json(), indent=1)},
        }
        try:
            if version is None:
                self._client.create(value)
                return True
            metadata["resourceVersion"] = version
            return self._client.patch("ConfigMap", self._group, value) is not None
        except Conflict:
            return False

    def members(self) -> list[Member]:
        return read_members(self._client, self._group)

    def put(self, member: Member) -> None:
        name = self._name(member.id)
        shown = lease(
            name,
            holder=member.id,
            seconds=round(self.silence_seconds),
            annotations={_MEMBER: json.dumps(member.to_json())},
            **self._belonging(self._pod.reference),
        )
        if self._client.patch("Lease", name, shown) is None:
            self._client.create(shown)

    def leave(self, member: str) -> None:
        self._client.delete("Lease", self._name(member))

    def _name(self, member: str) -> str:
        return f"{self._group}-{member}"

    def _belonging(self, owner: dict[str, Any]) -> dict[str, Any]:
        return {"labels": {GROUP_LABEL: self._group}, "ownerReferences": [owner]}
