"""An agent's own record, written again and again by a thread of its own. Called by `seat`."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace
from typing import Any

from shardline.components.common.errors import ShardlineError
from shardline.components.elasticity.group.board import Board
from shardline.components.elasticity.group.state import Member


class Presence:
    """Shows the others that this agent lives, for the length of a `with` block.

    Storage that fails for a moment costs a beat; the others wait for several.
    """

    def __init__(self, board: Board, member: Member) -> None:
        self._board = board
        self._member = member
        self._ended = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._beat, name="presence", daemon=True)

    @property
    def member(self) -> Member:
        return self._member

    def tell(self, **changes: Any) -> None:
        """Change the record; what is new is written at once."""
        changed = replace(self._member, **changes)
        if changed != self._member:
            with self._changed:
                self._member = changed
                self._changed.notify()

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

    def _beat(self) -> None:
        beat = 0
        while not self._ended:
            beat += 1
            shown = self._member
            with contextlib.suppress(ShardlineError):
                self._board.put(replace(shown, beat=beat))
            with self._changed:
                if not self._ended and self._member is shown:
                    self._changed.wait(self._board.beat_seconds)
