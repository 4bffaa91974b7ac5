"""Documents packed into blocks so that as few as possible are cut. Pure numpy; a unit is in memory.

A document that fits into a block is not cut. A longer one is, at every `sequence` tokens, as in `packing`; what is left
of it begins a block of its own. What doesn't fill a block is put together by best-fit decreasing (Ding et al., "Fewer
Truncations Improve Language Modeling", ICML 2024): the largest first, each into the fullest block that has room for it.
Each document in a block ends with the end-of-text token, which also is the one before the next; the rest is padding.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from shardline.components.sharding.blocks import Blocks, Tokens
from shardline.components.sharding.packing import Piece, Totals

_Sizes = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class _Part:
    """A document, or what was cut from it: without the end-of-text token that ends it."""

    tokens: Tokens
    sizes: _Sizes
    quiet: int
    weight: float
    place: tuple[int, int]
    document: int
    is_rest: bool


@dataclass
class _Block:
    """Parts that share a block, in their order. `closed`: the last token is part of it already."""

    parts: list[_Part] = field(default_factory=list)
    closed: bool = False


class BestFit:
    """One unit's documents of one split. Gives blocks when it is finished."""

    def __init__(
        self, *, sequence: int, row_group: int, dtype: npt.DTypeLike, end_of_text: int, source: int = 0
    ) -> None:
        self._sequence, self._row_group, self._source = sequence, row_group, source
        self._separator = np.array([end_of_text], dtype)
        self._whole: list[_Block] = []
        self._parts: list[_Part] = []
        self.totals = Totals()

    def add(self, document: Piece) -> Iterator[Blocks]:
        """Take a document."""
        number, place = self.totals.documents, (document.file, document.offset)
        self.totals.add(document)
        none = np.zeros(1, np.int32)
        tokens = np.concatenate([self._separator, document.ids, self._separator])
        sizes = np.concatenate([none, document.counted_sizes(), none])
        targets, at = len(tokens) - 1, 0
        while targets - at >= self._sequence:
            stop = at + self._sequence + 1
            quiet = max(0, document.quiet - at)
            part = _Part(tokens[at:stop], sizes[at:stop], quiet, document.weight, place, number, at > 0)
            self._whole.append(_Block([part], closed=True))
            at += self._sequence
        if at < targets:
            quiet = max(0, document.quiet - at)
            part = _Part(tokens[at:-1], sizes[at:-1], quiet, document.weight, place, number, at > 0)
            self._parts.append(part)
        return iter(())

    def finish(self) -> Iterator[Blocks]:
        """All blocks, in row groups, in the order of the documents that they begin with."""
        blocks = self._whole + _put_together(self._parts, room=self._sequence)
        blocks.sort(key=lambda block: (block.parts[0].document, not block.closed))
        for start in range(0, len(blocks), self._row_group):
            yield self._blocks(blocks[start : start + self._row_group], start)

    def _blocks(self, blocks: list[_Block], first: int) -> Blocks:
        rows, width = len(blocks), self._sequence + 1
        tokens = np.repeat(self._separator, rows * width).reshape(rows, width)
        length, sizes = np.empty(rows, np.int32), np.zeros(rows, np.int32)
        entries: list[tuple[int, int, int, int]] = []
        bounds = [0]
        for row, block in enumerate(blocks):
            at = 0
            for part in block.parts:
                tokens[row, at : at + len(part.tokens)] = part.tokens
                # The first token of a block is no target in it, and one that follows another document is end of text.
                sizes[row] += int(part.sizes[1:].sum())
                entries.append((at, part.quiet, *part.place))
                at += len(part.tokens)
            length[row] = at if block.closed else at + 1
            bounds.append(len(entries))
        columns = np.array(entries, np.int64)
        return Blocks(
            numbers=np.arange(first, first + rows, dtype=np.int64),
            tokens=tokens,
            length=length,
            bytes=sizes,
            source=np.full(rows, self._source, np.int32),
            bounds=np.array(bounds, np.int64),
            starts=columns[:, 0].astype(np.int32),
            quiet=columns[:, 1].astype(np.int32),
            weights=np.array([part.weight for block in blocks for part in block.parts], np.float32),
            files=columns[:, 2].astype(np.int32),
            offsets=columns[:, 3],
        )


def _put_together(parts: list[_Part], *, room: int) -> list[_Block]:
    """Best-fit decreasing. A rest goes first in its block, so a block has one at most."""
    blocks: list[_Block] = []
    # Blocks by the room that is left, those without a rest and those with one.
    free: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
    for part in sorted(parts, key=lambda part: (-len(part.tokens), part.document)):
        size = len(part.tokens)
        found = [(kind, at) for kind in ((0,) if part.is_rest else (0, 1)) if (at := _fullest(free[kind], size)) >= 0]
        if found:
            kind, at = min(found, key=lambda each: free[each[0]][each[1]])
            left, number = free[kind].pop(at)
        else:
            kind, left, number = 0, room, len(blocks)
            blocks.append(_Block())
        blocks[number].parts.append(part)
        bisect.insort(free[1 if part.is_rest else kind], (left - size, number))
    for block in blocks:
        block.parts.sort(key=lambda part: (not part.is_rest, part.document))
    return blocks


def _fullest(free: list[tuple[int, int]], size: int) -> int:
    at = bisect.bisect_left(free, (size, -1))
    return at if at < len(free) else -1
