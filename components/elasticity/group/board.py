"""Where the agents of a group find each other: a place with a few small records, read by all.

Called by `agent`. `Board` is the seam; here it is a folder of any storage that can swap, on Kubernetes a few objects.

Errors: `StorageLost` when it fails for longer than storage is waited for; whoever calls bears with that.
"""

from __future__ import annotations

import contextlib
import json
from typing import Protocol

from shardline.components.common.errors import DamagedData
from shardline.components.common.storage import Storage
from shardline.components.elasticity.group.state import Member, State

#: What a swap needs to know of the state that it replaces.
Version = object


class Board(Protocol):
    """Safe for two threads: one that beats, one that does the rest.

    Attributes:
        beat_seconds: between two writings of a member.
        silence_seconds: after so many without one it counts as gone.
    """

    beat_seconds: float
    silence_seconds: float

    def state(self) -> tuple[State | None, Version]:
        """The state, None before there is one; and what `swap` asks for."""
        ...

    def swap(self, version: Version, state: State) -> bool:
        """Replace the state of that version; False when it is another one by now."""
        ...

    def members(self) -> list[Member]:
        """All that have not left."""
        ...

    def put(self, member: Member) -> None: ...

    def leave(self, member: str) -> None: ...


class StorageBoard:
    """In a folder.

    Args:
        folder: of this group alone, for as long as its job lasts.
    """

    def __init__(self, folder: Storage) -> None:
        self._folder = folder
        self.beat_seconds = 0.25 if folder.is_local else 2.0
        self.silence_seconds = 3.0 if folder.is_local else 10.0

    def state(self) -> tuple[State | None, Version]:
        try:
            data = self._folder.read(_STATE)
        except FileNotFoundError:
            return None, None
        try:
            return State.from_json(json.loads(data)), data
        except (ValueError, TypeError) as error:
            where = self._folder.url_of(_STATE)
            raise DamagedData("is not what was written", where=where, hint="end the job and start it again") from error

    def swap(self, version: Version, state: State) -> bool:
        old = version if isinstance(version, bytes) else None
        return self._folder.swap(_STATE, old, json.dumps(state.to_json(), indent=1).encode())

    def members(self) -> list[Member]:
        found = []
        for name in sorted(self._folder.names(_MEMBERS)):
            # One that is just leaving, or is just being written.
            with contextlib.suppress(FileNotFoundError, ValueError, TypeError, KeyError):
                found.append(Member.from_json(json.loads(self._folder.read(f"{_MEMBERS}/{name}"))))
        return found

    def put(self, member: Member) -> None:
        self._folder.write(f"{_MEMBERS}/{member.id}.json", json.dumps(member.to_json()).encode())

    def leave(self, member: str) -> None:
        self._folder.delete(f"{_MEMBERS}/{member}.json")


_STATE = "state.json"
_MEMBERS = "members"
