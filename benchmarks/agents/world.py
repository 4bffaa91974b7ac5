"""Virtual time, and an API server in it: what a call costs, and when what is watched is told.

Called by `group`. Nothing here waits: what is to happen later stands in a queue, and time goes from event to event.
"""

from __future__ import annotations

import heapq
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.agents.server import Objects
from shardline.components.common.kubernetes.objects import Manifest

#: Of one API server: seconds until an idle one answers, calls a second that it gets done, and bytes.
_LATENCY, _CALLS, _BYTES = 0.005, 2000.0, 1.25e9
#: As `watched.ThreadWatch` has it.
_WATCH_SECONDS, _UNUSED_SECONDS = (240.0, 480.0), 60.0


class World:
    """The queue of what is to happen.

    Attributes:
        now: seconds.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()

    def at(self, moment: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (max(moment, self.now), next(self._count), call))

    def run(self, until: Callable[[], bool], *, most: float) -> float:
        """Go on until something is so; the seconds that it took.

        Raises:
            TimeoutError: it is not so after `most` seconds.
        """
        begun = checked = self.now
        while True:
            self.now, _, call = heapq.heappop(self._queue)
            call()
            if self.now - checked >= 0.1:
                checked = self.now
                if until():
                    return self.now - begun
                if self.now - begun > most:
                    raise TimeoutError(f"not after {most:.0f} s")


@dataclass
class Tally:
    """What was asked of the server, by the second."""

    calls: dict[int, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    bytes: Counter[int] = field(default_factory=Counter)
    events: Counter[int] = field(default_factory=Counter)

    def total(self, second: int) -> int:
        return sum(self.calls[second].values()) if second in self.calls else 0


class Api:
    """The server: its objects, and how long it takes for what it is asked.

    It answers one call after the other, `_CALLS` a second, over a connection of `_BYTES` a second, which what it tells
    watchers goes over, too. What a call does is done at once; its answer comes later.
    """

    def __init__(self, world: World) -> None:
        self.world, self.objects, self.tally = world, Objects(), Tally()
        self._free = self._sent = 0.0
        self._sizes: dict[str, int] = {}

    def answered(self, verb: str, size: int) -> float:
        """When the answer to a call is there."""
        now = self.world.now
        self.tally.calls[int(now)][verb] += 1
        self._free = max(self._free, now) + 1 / _CALLS
        return max(self._free, self._send(size)) + _LATENCY

    def tells(self, manifest: Manifest) -> float:
        """When a watcher has heard of a change."""
        self.tally.events[int(self.world.now)] += 1
        return self._send(self.size(manifest)) + _LATENCY

    def size(self, manifest: Manifest | None) -> int:
        """Bytes of an object."""
        if manifest is None:
            return 0
        version = manifest["metadata"]["resourceVersion"]
        if version not in self._sizes:
            self._sizes[version] = len(json.dumps(manifest))
        return self._sizes[version]

    def _send(self, size: int) -> float:
        self.tally.bytes[int(self.world.now)] += size
        self._sent = max(self._sent, self.world.now) + size / _BYTES
        return self._sent


class ApiClient:
    """What an agent needs of the client.

    Attributes:
        free: when the last answer is there.
    """

    def __init__(self, api: Api) -> None:
        self.api, self.free = api, 0.0

    def get(self, kind: str, name: str) -> Manifest | None:
        return self._called("GET", self.api.objects.get(kind, name))

    def list(self, kind: str, *, labels: Mapping[str, str] | None = None, name: str | None = None) -> list[Manifest]:
        found = self.api.objects.list(kind, labels, name)
        self.free = max(self.free, self.api.answered("LIST", sum(map(self.api.size, found))))
        return found

    def create(self, manifest: Manifest) -> Manifest:
        self._called("POST", None)
        return self.api.objects.create(manifest)

    def patch(self, kind: str, name: str, change: Mapping[str, Any]) -> Manifest | None:
        self._called("PATCH", None)
        return self.api.objects.patch(kind, name, change)

    def delete(self, kind: str, name: str) -> bool:
        self._called("DELETE", None)
        return self.api.objects.delete(kind, name)

    def called(self, verb: str) -> None:
        self._called(verb, None)

    def _called(self, verb: str, found: Manifest | None) -> Manifest | None:
        self.free = max(self.free, self.api.answered(verb, self.api.size(found)))
        return found


class ApiWatch:
    """What an agent watches, as `watched.ThreadWatch` does it."""

    def __init__(
        self,
        client: ApiClient,
        kind: str,
        *,
        pick: Callable[[float, float], float],
        labels: Mapping[str, str] | None = None,
        name: str | None = None,
        spread: float = 0.0,
    ) -> None:
        self._client, self._world, self._pick = client, client.api.world, pick
        self._kind, self._labels, self._name = kind, labels, name
        self._objects: dict[str, Manifest] = {}
        self._end: Callable[[], None] | None = None
        self._complete_at = self._until = self._used = 0.0

    def found(self) -> Mapping[str, Manifest] | None:
        now = self._used = self._world.now
        if self._end is None or now >= self._until:
            self._begin()
        return self._objects if now >= self._complete_at else None

    def drop(self) -> None:
        if self._end is not None:
            self._end()
            self._end = None

    def _begin(self) -> None:
        begun_before = self._end is not None
        self.drop()
        found = self._client.list(self._kind, labels=self._labels, name=self._name)
        self._objects = {each["metadata"]["name"]: each for each in found}
        if not begun_before:
            self._complete_at = self._client.free
        self._client.called("WATCH")
        self._until = self._world.now + self._pick(*_WATCH_SECONDS)
        self._end = self._client.api.objects.watch(
            self._kind, labels=self._labels, name=self._name, since=self._client.api.objects.version, told=self._told
        )

    def _told(self, event: str, manifest: Manifest) -> None:
        if self._world.now - self._used > _UNUSED_SECONDS:
            return self.drop()
        self._world.at(self._client.api.tells(manifest), lambda: self._note(event, manifest))

    def _note(self, event: str, manifest: Manifest) -> None:
        name = manifest["metadata"]["name"]
        if event == "DELETED":
            self._objects.pop(name, None)
        else:
            self._objects[name] = manifest
