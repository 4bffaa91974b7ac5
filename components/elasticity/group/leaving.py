"""A signal that asks an agent to leave, and until when its workers may yet save what they have. Called by `seat`."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

from shardline.components.common.errors import Stopped
from shardline.components.common.processes import SAME_SIGNAL_SECONDS


class Leaving:
    """What SIGTERM asked for, while `heard`. A second one is not waited for any longer.

    Args:
        grace: seconds that the workers have to save and end.
    """

    def __init__(self, *, grace: float) -> None:
        self._grace = grace
        self._since: float | None = None

    @property
    def asked(self) -> bool:
        return self._since is not None

    def check(self, *, at_work: bool) -> None:
        """Raises Stopped when this agent was asked to leave and nothing, or no time, is left to wait for."""
        if self._since is not None and (not at_work or time.monotonic() - self._since > self._grace):
            raise Stopped("terminated", signum=signal.SIGTERM)

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """For the length of the block; in the main thread, which alone can hear signals."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGTERM, self._hear)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def _hear(self, signum: int, frame: FrameType | None) -> None:
        if self._since is None:
            self._since = time.monotonic()
        elif time.monotonic() - self._since > SAME_SIGNAL_SECONDS:
            raise Stopped("terminated", signum=signum)
