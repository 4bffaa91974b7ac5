"""Work that a thread does beside a step, again and again. Called by what shows or looks for small files of a run."""

from __future__ import annotations

import threading
from collections.abc import Callable

from shardline.components.common.storage import Storage

_LOCAL_SECONDS = 0.5
_REMOTE_SECONDS = 2.0


class Ticking:
    """Calls `tick` now and then for the length of a `with` block, as often as the run's storage bears it.

    Args:
        tick: called in the thread `name`; it raises nothing.
    """

    def __init__(self, run: Storage, tick: Callable[[], None], *, name: str) -> None:
        self._seconds = _LOCAL_SECONDS if run.is_local else _REMOTE_SECONDS
        self._tick = tick
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)

    def __enter__(self) -> Ticking:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join()

    def _loop(self) -> None:
        while not self._ended.wait(self._seconds):
            self._tick()
