"""An agent's own record, written again and again by a thread of its own. Called by `seat`."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from shardline.components.common.errors import ShardlineError
from shardline.components.elasticity.group.board import Board
from shardline.components.elasticity.group.state import Member


class Rhythm:
    """When a record is to be written: each beat, and soon after it has changed. Pure.

    Attributes:
        due: the moment.
    """

    def __init__(self, pick: random.Random) -> None:
        self._pick, self._begun, self._told = pick, False, False
        self.due = -float("inf")

    def changed(self, *, now: float, spread: float) -> None:
        """It is to be written within `spread` seconds, at a moment that is drawn once whatever else changes by then."""
        if not self._told or not spread:
            self.due = min(self.due, now + self._pick.uniform(0, spread))
        self._told = True

    def writing(self, *, now: float, beat: float, spread: float) -> None:
        """It is being written, as it is now."""
        # Agents that were started at the same moment do not beat at the same moments.
        self.due = now + (self._pick.uniform(0, beat) if spread and not self._begun else beat)
        self._begun, self._told = True, False


class Presence:
    """Shows the others that this agent lives, for the length of a `with` block.

    Storage that fails for a moment costs a beat; the others wait for several.
    """

    def __init__(
        self, board: Board, member: Member, *, clock: Callable[[], float] = time.monotonic, pick: random.Random
    ) -> None:
        self._board, self._member, self._clock = board, member, clock
        self._rhythm = Rhythm(pick)
        self._beat = 0
        self._ended = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._beats, name="presence", daemon=True)

    @property
    def member(self) -> Member:
        return self._member

    @property
    def due(self) -> float:
        """When the record is to be written next."""
        return self._rhythm.due

    def tell(self, *, at_once: bool = False, **changes: Any) -> None:
        """Change the record. What is new is written soon; in a large group not at once, unless that is asked for."""
        if any(getattr(self._member, key) != value for key, value in changes.items()):
            with self._changed:
                self._member = replace(self._member, **changes)
                self._rhythm.changed(now=self._clock(), spread=0.0 if at_once else self._board.spread_seconds)
                self._changed.notify()

    def write(self) -> None:
        """Write the record, as it is now."""
        with self._changed:
            now, beat, spread = self._clock(), self._board.beat_seconds, self._board.spread_seconds
            self._rhythm.writing(now=now, beat=beat, spread=spread)
            self._beat += 1
            shown = replace(self._member, beat=self._beat)
        with contextlib.suppress(ShardlineError):
            self._board.put(shown)

    def __enter__(self) -> Presence:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join()
        with contextlib.suppress(ShardlineError):  # silence tells the others, too
            self._board.leave(self._member.id)

    def _beats(self) -> None:
        while self._is_time():
            self.write()

    def _is_time(self) -> bool:
        """Wait until the record is to be written; False when it never is again."""
        with self._changed:
            while not self._ended and (left := self._rhythm.due - self._clock()) > 0:
                self._changed.wait(min(left, threading.TIMEOUT_MAX))
            return not self._ended
