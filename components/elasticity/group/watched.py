"""Objects of the API server as a watch tells of them: looking at them is no call. Called by `kube_board`.

Each `Watch` has a thread of its own for as long as somebody looks. A connection that was cut off may stay silent for
minutes: whoever has another reason to think that the server was away calls `drop`.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping
from typing import Protocol

from shardline.components.common.errors import ShardlineError
from shardline.components.common.kubernetes.client import Client
from shardline.components.common.kubernetes.objects import Manifest

#: After so many seconds it begins anew with what is there; each one with another number, so that not all do at once.
_SECONDS = 240.0, 480.0
#: Nobody has looked for so long.
_UNUSED_SECONDS = 60.0


class Watch(Protocol):
    """What is there of some objects."""

    def found(self) -> Mapping[str, Manifest] | None:
        """By their names; None while that is not known: ask the server."""
        ...

    def drop(self) -> None:
        """Forget all of it, and begin anew."""
        ...


class ThreadWatch:
    """See the module.

    Args:
        labels, name: which objects of `kind`.
        spread: seconds over which all that watch the same come again after the server ended their connections.
    """

    def __init__(
        self,
        client: Client,
        kind: str,
        *,
        labels: Mapping[str, str] | None = None,
        name: str | None = None,
        spread: float = 0.0,
    ) -> None:
        self._client, self._kind = client, kind
        self._labels, self._name, self._spread = labels, name, spread
        self._lock = threading.Lock()
        self._turn: _Turn | None = None
        self._used = 0.0

    def found(self) -> Mapping[str, Manifest] | None:
        with self._lock:
            self._used = time.monotonic()
            if self._turn is None:
                self._turn = _Turn()
                threading.Thread(target=self._follow, args=(self._turn,), name="watch", daemon=True).start()
            return dict(self._turn.objects) if self._turn.complete else None

    def drop(self) -> None:
        with self._lock:
            self._turn = None

    def _follow(self, turn: _Turn) -> None:
        try:
            for event, each in self._client.watch(
                self._kind,
                seconds=random.uniform(*_SECONDS),
                labels=self._labels,
                name=self._name,
                spread=self._spread,
                listed=lambda: self._complete(turn),
            ):
                if not self._note(turn, event, each):
                    return
        except ShardlineError:
            pass  # whoever looks asks the server, and hears of it
        finally:
            with self._lock:
                if self._turn is turn:
                    self._turn = None

    def _complete(self, turn: _Turn) -> None:
        with self._lock:
            turn.complete = True

    def _note(self, turn: _Turn, event: str, each: Manifest) -> bool:
        """Whether to go on."""
        with self._lock:
            name = each["metadata"]["name"]
            if event == "DELETED":
                turn.objects.pop(name, None)
            else:
                turn.objects[name] = each
            return self._turn is turn and time.monotonic() - self._used < _UNUSED_SECONDS


class _Turn:
    """One watch, from its beginning to its end."""

    def __init__(self) -> None:
        self.objects: dict[str, Manifest] = {}
        self.complete = False
