"""The objects of an API server, in memory: versions, compare-and-swap, and who watches what.

Called by the simulation and, over HTTP, by the tests of the board. As the real one it has one counter of versions for
all objects, refuses to create what is there and to change what was changed since, and tells watchers of each change.
"""

from __future__ import annotations

import copy
import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any

from shardline.components.common.kubernetes.objects import Manifest
from shardline.components.common.kubernetes.refusals import Conflict

#: Changes that a watch may begin with that were before it.
_HISTORY = 1000
Told = Callable[[str, Manifest], None]


class Objects:
    """See the module. Not for several threads."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Manifest] = {}
        self._counter = itertools.count(1)
        self._watchers: dict[str, dict[int, tuple[Mapping[str, str] | None, str | None, Told]]] = defaultdict(dict)
        self._history: deque[tuple[int, str, Manifest]] = deque(maxlen=_HISTORY)
        self.version = 0

    def get(self, kind: str, name: str) -> Manifest | None:
        return self._found.get((kind, name))

    def list(self, kind: str, labels: Mapping[str, str] | None = None, name: str | None = None) -> list[Manifest]:
        return [each for (of, _), each in self._found.items() if of == kind and _is_selected(each, labels, name)]

    def create(self, manifest: Manifest) -> Manifest:
        """Raises Conflict: one of that name is there."""
        key = manifest["kind"], manifest["metadata"]["name"]
        if key in self._found:
            raise Conflict("already exists", where=" ".join(key))
        made = copy.deepcopy(manifest)
        made["metadata"]["uid"] = f"uid-{next(self._counter)}"
        return self._put(key, made, "ADDED")

    def patch(self, kind: str, name: str, change: Mapping[str, Any]) -> Manifest | None:
        """Merge `change` into the object.

        Raises:
            Conflict: it has another version than `change` says.
        """
        before = self._found.get((kind, name))
        if before is None:
            return None
        expected = change.get("metadata", {}).get("resourceVersion")
        if expected not in (None, before["metadata"]["resourceVersion"]):
            raise Conflict("the object has been modified", where=f"{kind} {name}")
        return self._put((kind, name), _merged(before, change), "MODIFIED")

    def delete(self, kind: str, name: str) -> bool:
        found = self._found.pop((kind, name), None)
        if found is not None:
            self.version = next(self._counter)
            self._tell("DELETED", found)
        return found is not None

    def watch(
        self, kind: str, *, labels: Mapping[str, str] | None, name: str | None, since: int, told: Told
    ) -> Callable[[], None]:
        """Have `told` called with each change after the version `since`; what ends that."""
        for version, event, each in self._history:
            if version > since and each["kind"] == kind and _is_selected(each, labels, name):
                told(event, each)
        place = next(self._counter)
        self._watchers[kind][place] = labels, name, told
        return lambda: self._watchers[kind].pop(place, None) and None

    def _put(self, key: tuple[str, str], manifest: Manifest, event: str) -> Manifest:
        self.version = next(self._counter)
        manifest["metadata"]["resourceVersion"] = str(self.version)
        self._found[key] = manifest
        self._tell(event, manifest)
        return manifest

    def _tell(self, event: str, manifest: Manifest) -> None:
        self._history.append((self.version, event, manifest))
        for labels, name, told in list(self._watchers[manifest["kind"]].values()):
            if _is_selected(manifest, labels, name):
                told(event, manifest)


def _is_selected(manifest: Manifest, labels: Mapping[str, str] | None, name: str | None) -> bool:
    there = manifest["metadata"].get("labels") or {}
    return name in (None, manifest["metadata"]["name"]) and (labels or {}).items() <= there.items()


def _merged(before: Mapping[str, Any], change: Mapping[str, Any]) -> Manifest:
    """A JSON merge patch; `before` stays as it is, as somebody may hold it."""
    merged = dict(before)
    for key, value in change.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            inner = merged.get(key)
            merged[key] = _merged(inner if isinstance(inner, Mapping) else {}, value)
        else:
            merged[key] = value
    return merged
