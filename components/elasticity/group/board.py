"""Where the agents of a group find each other: a place with a few small records, read by all.

Called by `seat`. `Board` is the seam; here it is a folder of any storage that can swap, or the memory of the one agent
that there is; on Kubernetes a few objects.

Errors: `StorageLost` when it fails for longer than storage is waited for; whoever calls bears with that.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
from collections.abc import Collection
from typing import Protocol

from shardline.components.common.errors import DamagedData
from shardline.components.common.storage import Storage
from shardline.components.elasticity.group.pace import Pace
from shardline.components.elasticity.group.state import Member, State

#: What a swap needs to know of the state that it replaces.
Version = object


class Board(Protocol):
    """Safe for two threads: one that beats, one that does the rest.

    Attributes:
        beat_seconds: between two writings of a member; poll_seconds: between two looks at what others have written.
        silence_seconds: after so many without one it counts as gone.
        spread_seconds: over which calls are spread that all members have reason to make at the same moment.
    """

    @property
    def beat_seconds(self) -> float: ...

    @property
    def poll_seconds(self) -> float: ...

    @property
    def silence_seconds(self) -> float: ...

    @property
    def spread_seconds(self) -> float: ...

    def state(self) -> tuple[State | None, Version]:
        """The state, None before there is one; and what `swap` asks for."""
        ...

    def followed(self) -> tuple[State | None, Version]:
        """As `state`, for those who only follow: it may be a little old."""
        ...

    def swap(self, version: Version, state: State) -> bool:
        """Replace the state of that version; False when it is another one by now."""
        ...

    def members(self, names: Collection[str] | None = None) -> list[Member]:
        """All that have not left; or those of `names`, of whom all may ask often."""
        ...

    def put(self, member: Member) -> None: ...

    def leave(self, member: str) -> None: ...


class StorageBoard:
    """In a folder.

    Args:
        folder: of this group alone, for as long as its job lasts.
        most: members that there may be.
    """

    def __init__(self, folder: Storage, *, most: int = 1) -> None:
        self._folder = folder
        beat, silence = (0.25, 3.0) if folder.is_local else (2.0, 10.0)
        pace = Pace.of(most, beat=beat, silence=silence)
        self.beat_seconds, self.silence_seconds, self.spread_seconds = pace.beat, pace.silence, pace.spread
        # What the others write changes no faster; each look is a few requests.
        self.poll_seconds = self.beat_seconds / 2

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

    def followed(self) -> tuple[State | None, Version]:
        return self.state()

    def swap(self, version: Version, state: State) -> bool:
        old = version if isinstance(version, bytes) else None
        return self._folder.swap(_STATE, old, json.dumps(state.to_json(), indent=1).encode())

    def members(self, names: Collection[str] | None = None) -> list[Member]:
        files = self._folder.names(_MEMBERS) if names is None else [f"{name}.json" for name in names]
        found = []
        for file in sorted(files):
            # One that is just leaving, or is just being written.
            with contextlib.suppress(FileNotFoundError, ValueError, TypeError, KeyError):
                found.append(Member.from_json(json.loads(self._folder.read(f"{_MEMBERS}/{file}"))))
        return found

    def put(self, member: Member) -> None:
        self._folder.write(f"{_MEMBERS}/{member.id}.json", json.dumps(member.to_json()).encode())

    def leave(self, member: str) -> None:
        self._folder.delete(f"{_MEMBERS}/{member}.json")


class MemoryBoard:
    """For an agent that is alone."""

    beat_seconds = threading.TIMEOUT_MAX
    silence_seconds = math.inf
    poll_seconds = 0.05
    spread_seconds = 0.0

    def __init__(self) -> None:
        self._state: State | None = None
        self._members: dict[str, Member] = {}

    def state(self) -> tuple[State | None, Version]:
        return self._state, self._state

    def followed(self) -> tuple[State | None, Version]:
        return self.state()

    def swap(self, version: Version, state: State) -> bool:
        if version is not self._state:
            return False
        self._state = state
        return True

    def members(self, names: Collection[str] | None = None) -> list[Member]:
        return [member for member in self._members.values() if names is None or member.id in names]

    def put(self, member: Member) -> None:
        self._members[member.id] = member

    def leave(self, member: str) -> None:
        self._members.pop(member, None)


_STATE = "state.json"
_MEMBERS = "members"
