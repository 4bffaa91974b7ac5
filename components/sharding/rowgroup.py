"""A row group in memory: its tokens, and what is decoded of the rest when it is asked for. Called by `dataset`."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable

import numpy as np

from shardline.components.sharding.blocks import Blocks, Tokens


class RowGroup:
    """A row group that was read."""

    def __init__(self, tokens: Tokens, decode: Callable[[Tokens], Blocks]) -> None:
        self._tokens: Tokens | None = tokens
        self._rows = len(tokens)
        self._decode = decode
        self._blocks: Blocks | None = None

    @property
    def tokens(self) -> Tokens:
        """[rows, sequence + 1]; [rows, 0] once they are dropped."""
        return np.empty((self._rows, 0), np.uint16) if self._tokens is None else self._tokens

    def blocks(self) -> Blocks:
        """All there is of the blocks; decoded when it is first asked for."""
        if self._blocks is None:
            self._blocks = self._decode(self.tokens)
        return self._blocks

    def drop_tokens(self) -> None:
        """Let go of the tokens; `blocks` has none from now on."""
        # Not even an empty array takes their place: it would stay behind in the midst of the memory that this thread
        # takes and gives back for each row group, which then no longer has room for a whole one.
        self._tokens = None


class Shelf:
    """Copies of small pieces, side by side in a few large ones.

    A piece that outlives what was read with it would else lie in the midst of the memory that each row group takes and
    gives back, which then can't be used again for a whole one. Safe for several threads.
    """

    _SIZE = 1 << 20

    def __init__(self) -> None:
        self._board = memoryview(b"")
        self._lock = threading.Lock()

    def keep(self, piece: memoryview) -> memoryview:
        with self._lock:
            if len(self._board) < len(piece):
                self._board = memoryview(mmap.mmap(-1, max(len(piece), self._SIZE)))
            kept, self._board = self._board[: len(piece)], self._board[len(piece) :]
        kept[:] = piece
        return kept
