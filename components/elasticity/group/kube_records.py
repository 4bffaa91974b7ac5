"""What a group's objects in a Kubernetes namespace are called, and how they are read. Called by `kube_board`, and by
those who look at a group from outside.

Errors: as the client's; `DamagedData` for what is no state.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from shardline.components.common.errors import DamagedData
from shardline.components.common.kubernetes.client import Client
from shardline.components.common.kubernetes.objects import Manifest
from shardline.components.elasticity.group import encoding
from shardline.components.elasticity.group.state import Member, State

GROUP_LABEL = "shardline.io/group"
#: Of the ConfigMaps of details, which are no states.
DETAILS_LABEL = "shardline.io/details-of"
#: An annotation of a Lease; keys of a ConfigMap's data.
MEMBER, STATE, DETAILS = "shardline.io/member", "state", "details"
#: For a state that is replaced between reading it and its details.
_TRIES = 5


def group_of(owner: Mapping[str, Any]) -> str:
    """The group of the agents in the pods of `owner`, by its `name` and `uid`."""
    return f"{owner['name']}-{owner['uid'][:8]}"


def read_state(client: Client, group: str) -> State | None:
    """The state of a group, for those who are no member."""
    return StateReader(client, group).read()[0]


def read_members(client: Client, group: str) -> list[Member]:
    """As `Board.members`; for those, too, who are no member."""
    return MemberReader().of(client.list("Lease", labels=labels_of(group)))


@dataclass(frozen=True)
class Kept:
    """What a swap needs to know: the ConfigMap's version, and which details belong to it."""

    resource: str
    details: str | None


class StateReader:
    """Reads a group's state; its details, which many states share, once."""

    def __init__(self, client: Client, group: str) -> None:
        self._client, self._group = client, group
        self._details: tuple[str | None, str | None] = (None, None)

    def read(self) -> tuple[State | None, Kept | None]:
        """As it is now.

        Raises:
            DamagedData: it is no state.
        """
        for _ in range(_TRIES):
            found = self._client.get("ConfigMap", self._group)
            if found is None:
                return None, None
            state, version = self.of(found)
            if state is not None:
                return state, version
        raise self._damaged()

    def of(self, found: Manifest) -> tuple[State | None, Kept]:
        """The state in an object; None when its details are gone, as it was replaced meanwhile."""
        digest = self._named(found)
        if self.lacks(found) is not None:
            details = self._client.get("ConfigMap", details_of(self._group, str(digest)))
            if details is None:
                return None, self._version(found)
            self._details = digest, details["binaryData"][DETAILS]
        try:
            state = encoding.decoded(found["data"][STATE], self._details[1] if digest is not None else None)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise self._damaged() from error
        return state, self._version(found)

    def lacks(self, found: Manifest) -> str | None:
        """The digest of the details that are yet to be read."""
        digest = self._named(found)
        return digest if digest is not None and digest != self._details[0] else None

    def _version(self, found: Manifest) -> Kept:
        return Kept(found["metadata"]["resourceVersion"], self._named(found))

    def _named(self, found: Manifest) -> str | None:
        try:
            return encoding.named(found["data"][STATE])
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise self._damaged() from error

    def _damaged(self) -> DamagedData:
        return DamagedData(
            "is not a group's state", where=f"ConfigMap {self._group}", hint="delete it and apply the job again"
        )


class MemberReader:
    """Reads members' records, each version of one once."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, Member | None]] = {}

    def of(self, leases: Iterable[Manifest]) -> list[Member]:
        """Those that show a member which stays."""
        found = []
        for each in leases:
            name, version = each["metadata"]["name"], each["metadata"]["resourceVersion"]
            known = self._known.get(name)
            if known is None or known[0] != version:
                known = self._known[name] = version, self._decoded(each)
            if known[1] is not None:
                found.append(known[1])
        return sorted(found, key=lambda member: member.id)

    @staticmethod
    def _decoded(each: Manifest) -> Member | None:
        text = each["metadata"].get("annotations", {}).get(MEMBER)
        return Member.from_json(json.loads(text)) if text and "deletionTimestamp" not in each["metadata"] else None


def labels_of(group: str) -> dict[str, str]:
    return {GROUP_LABEL: group}


def details_of(group: str, digest: str) -> str:
    """The name of the ConfigMap of details."""
    return f"{group}-{digest}"
