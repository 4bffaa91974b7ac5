"""Documents packed into blocks, end to end. Pure numpy; memory is bounded by a row group. See also `bestfit`.

The documents of a unit's split form one stream: the end-of-text token before each of them, and once more at the end.
The stream is cut into blocks of `sequence` + 1 tokens that overlap by one, block i being stream[i * T : i * T + T + 1],
so that each token but the very first is a target exactly once. The last block is padded with the end-of-text token.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from shardline.components.sharding.blocks import I64, Blocks, Tokens


@dataclass(frozen=True, eq=False, kw_only=True)
class Piece:
    """A document to pack.

    Attributes:
        ids: its tokens; `sizes` the bytes of text that each stands for.
        quiet: how many of the first ones are not trained on; `weight`: what each of the others counts.
        file, offset: its place in the corpus source.
    """

    ids: Tokens
    sizes: npt.NDArray[np.int32]
    quiet: int = 0
    weight: float = 1.0
    file: int
    offset: int

    def counted_sizes(self) -> npt.NDArray[np.int32]:
        """`sizes`, without those of tokens that are not trained on."""
        if not self.quiet:
            return self.sizes
        sizes = self.sizes.copy()
        sizes[: self.quiet] = 0
        return sizes


@dataclass
class Totals:
    """What was packed: documents, tokens to train on, the bytes that these stand for, and bytes of text in all."""

    documents: int = 0
    tokens: int = 0
    bytes: int = 0
    text_bytes: int = 0

    def add(self, document: Piece) -> None:
        self.documents += 1
        # Each token but the quiet ones is a target, and so is the end-of-text token after the last.
        self.tokens += len(document.ids) - document.quiet + 1
        self.bytes += int(document.counted_sizes().sum())
        self.text_bytes += int(document.sizes.sum())


class Packing(Protocol):
    """How documents of a unit become blocks."""

    totals: Totals

    def add(self, document: Piece) -> Iterator[Blocks]:
        """Take a document, and give the row groups that are complete."""
        ...

    def finish(self) -> Iterator[Blocks]:
        """End the unit, and give what is left."""
        ...


class Packer:
    """One stream. Gives its blocks in row groups of `row_group`; only the last one is smaller."""

    def __init__(
        self, *, sequence: int, row_group: int, dtype: npt.DTypeLike, end_of_text: int, source: int = 0
    ) -> None:
        self._sequence = sequence
        self._group_tokens = sequence * row_group
        self._dtype = np.dtype(dtype)
        self._separator = np.array([end_of_text], self._dtype)
        self._no_bytes = np.zeros(1, np.int32)
        self._tokens: list[Tokens] = []
        self._sizes: list[npt.NDArray[np.int32]] = []
        self._pending = 0
        # The documents that begin in what is pending, and before them the one that is open where it begins.
        self._begins: list[int] = []
        self._places: list[tuple[int, int]] = []
        self._quiet: list[int] = []
        self._weights: list[float] = []
        self._blocks = 0
        self._source = source
        self.totals = Totals()

    def add(self, document: Piece) -> Iterator[Blocks]:
        """Append a document, and give the row groups that are complete."""
        self._begins.append(self._pending)
        self._places.append((document.file, document.offset))
        self._quiet.append(document.quiet)
        self._weights.append(document.weight)
        self._append(self._separator, self._no_bytes)
        self._append(document.ids, document.counted_sizes())
        self.totals.add(document)
        while self._pending > self._group_tokens:
            yield self._cut(self._group_tokens)

    def finish(self) -> Iterator[Blocks]:
        """End the stream, and give what is left."""
        if not self.totals.documents:
            return
        self._append(self._separator, self._no_bytes)
        while self._pending > 1:
            yield self._cut(min(self._group_tokens, self._pending - 1))

    def _append(self, ids: Tokens, sizes: npt.NDArray[np.int32]) -> None:
        self._tokens.append(ids)
        self._sizes.append(sizes)
        self._pending += len(ids)

    def _cut(self, targets: int) -> Blocks:
        """Blocks for the next `targets` targets; the token after them stays, as the first of what follows."""
        tokens, sizes = _joined(self._tokens), _joined(self._sizes)
        rows = -(-targets // self._sequence)
        padding = rows * self._sequence - targets
        stream = np.concatenate([tokens[: targets + 1], np.repeat(self._separator, padding)])
        length = np.full(rows, self._sequence + 1, np.int32)
        length[-1] -= padding
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes[1 : targets + 1], dtype=np.int64)])
        edges = np.minimum(np.arange(rows + 1) * self._sequence, targets)
        bounds, starts, documents, quiet = self._document_starts(rows)
        places = np.array(self._places, np.int64)[documents]
        blocks = Blocks(
            numbers=np.arange(self._blocks, self._blocks + rows, dtype=np.int64),
            tokens=_windows(stream, rows, self._sequence),
            length=length,
            bytes=np.diff(ends[edges]).astype(np.int32),
            source=np.full(rows, self._source, np.int32),
            bounds=bounds,
            starts=starts.astype(np.int32),
            quiet=quiet.astype(np.int32),
            weights=np.array(self._weights, np.float32)[documents],
            files=places[:, 0].astype(np.int32),
            offsets=places[:, 1],
        )
        self._drop(targets, tokens, sizes)
        self._blocks += rows
        return blocks

    def _document_starts(self, rows: int) -> tuple[I64, I64, I64, I64]:
        """For `rows` blocks: the bounds of each one's starts, the starts, each start's document and quiet tokens."""
        begins = np.array(self._begins, np.int64)
        row_begins = np.arange(rows, dtype=np.int64) * self._sequence
        at = np.union1d(begins[(begins >= 0) & (begins < rows * self._sequence)], row_begins)
        documents = np.searchsorted(begins, at, side="right") - 1
        bounds = np.searchsorted(at, np.append(row_begins, rows * self._sequence))
        quiet = np.maximum(0, begins[documents] + np.array(self._quiet, np.int64)[documents] - at)
        return bounds.astype(np.int64), at % self._sequence, documents, quiet

    def _drop(self, targets: int, tokens: Tokens, sizes: npt.NDArray[np.int32]) -> None:
        self._tokens, self._sizes = [tokens[targets:]], [sizes[targets:]]
        self._pending = len(tokens) - targets
        shifted = np.array(self._begins, np.int64) - targets
        open_one = max(0, int(np.searchsorted(shifted, 0, side="right")) - 1)
        self._begins = shifted[open_one:].tolist()
        self._places = self._places[open_one:]
        self._quiet = self._quiet[open_one:]
        self._weights = self._weights[open_one:]


def _joined(parts: list[Any]) -> Any:
    # What is left of a long document is one part: a view, not copied again at each cut.
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _windows(stream: Tokens, rows: int, sequence: int) -> Tokens:
    view = np.lib.stride_tricks.sliding_window_view(stream, sequence + 1)[::sequence]
    return np.ascontiguousarray(view[:rows])
