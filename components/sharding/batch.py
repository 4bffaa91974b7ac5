"""A microbatch as the model takes it. Pure numpy: blocks in, records out."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shardline.components.sharding.blocks import F32, I32, I64, Samples
from shardline.components.sharding.order import Places


class Details(NamedTuple):
    """What is known of each token of m samples of T tokens; made when it is asked for.

    Attributes:
        positions: int64[m, T], from 0 in each document; also at the start of a sample that begins inside one.
        documents: int32[m, T], the number of the document within its sample, from 0: tokens of different documents
            need not see each other.
        loss_mask: bool[m, T], False where the target is padding, part of a prompt, or was given before.
        loss_weights: float32[m, T], what the target counts in the loss: its document's weight, 0 where it is masked.
        bytes: int32[m], UTF-8 bytes of the text that the targets stand for; 0 for a sample that is a part of a block.
    """

    positions: I64
    documents: I32
    loss_mask: npt.NDArray[np.bool_]
    loss_weights: F32
    bytes: I32

    def rows(self, start: int, stop: int) -> Details:
        here = slice(start, stop)
        return Details._make(column[here] for column in self)


class Batch:
    """m samples of T tokens, as a record.

    Attributes:
        tokens: int64[m, T], the inputs; targets: int64[m, T], the token that follows each.
        samples: int64[m], the block numbers, carried along from where the blocks were read; -1: there is no sample.
        index: int64[m], the global sample indices; -1: there is no sample.
        positions, documents, loss_mask, loss_weights, bytes: as in `Details`.
    """

    __slots__ = ("_details", "index", "samples", "targets", "tokens")

    def __init__(
        self, *, tokens: I64, targets: I64, samples: I64, index: I64, details: Details | Callable[[], Details]
    ) -> None:
        self.tokens, self.targets, self.samples, self.index = tokens, targets, samples, index
        self._details = details

    @property
    def details(self) -> Details:
        if not isinstance(self._details, Details):
            self._details = self._details()
        return self._details

    @property
    def positions(self) -> I64:
        return self.details.positions

    @property
    def documents(self) -> I32:
        return self.details.documents

    @property
    def loss_mask(self) -> npt.NDArray[np.bool_]:
        return self.details.loss_mask

    @property
    def loss_weights(self) -> F32:
        return self.details.loss_weights

    @property
    def bytes(self) -> I32:
        return self.details.bytes


def details_of(blocks: Samples, places: Places, *, sequence: int, whole: bool, rows: int) -> Details:
    """The details of samples of `sequence` tokens, parts of `blocks` (or `whole` ones), an entry each.

    Where there are fewer than `rows`, the last ones are absent.
    """
    out = no_details(rows, sequence)
    present = len(blocks)
    if not present:
        return out
    row = np.repeat(np.arange(present), np.diff(blocks.bounds))
    begins = blocks.starts - places.offsets[row]
    here = (begins >= 0) & (begins < sequence)
    starts = np.zeros((present, sequence), np.int32)
    starts[row[here], begins[here]] = begins[here]
    out.positions[:present] = np.arange(sequence) - np.maximum.accumulate(starts, axis=1)
    starts[:] = 0
    starts[row[here], begins[here]] = 1
    starts[:, 0] = 0
    out.documents[:present] = np.cumsum(starts, axis=1)
    place = np.arange(sequence)
    counted = (place < (blocks.length - 1 - places.offsets)[:, None]) & (place >= places.hidden[:, None])
    if blocks.quiet.any():
        counted &= ~_quiet(row, begins, blocks.quiet, present, sequence)
    out.loss_mask[:present] = counted
    out.loss_weights[:present] = counted
    if (blocks.weights != 1).any():
        out.loss_weights[:present] *= _weights(row, begins, blocks.weights, present, sequence)
    if whole:
        out.bytes[:present] = blocks.bytes
    return out


def _quiet(row: I64, begins: I64, quiet: I32, rows: int, sequence: int) -> npt.NDArray[np.bool_]:
    """Where the target, the token after the one at that place, is one of the `quiet` tokens after `begins`."""
    edges = np.zeros((rows, sequence + 1), np.int32)
    np.add.at(edges, (row, np.clip(begins, 0, sequence)), 1)
    np.add.at(edges, (row, np.clip(begins + quiet, 0, sequence)), -1)
    inside: npt.NDArray[np.bool_] = np.cumsum(edges, axis=1)[:, :sequence] > 0
    return inside


def _weights(row: I64, begins: I64, weights: F32, rows: int, sequence: int) -> F32:
    """At each place the weight of the document that the token there, and so the target after it, belongs to."""
    numbers = np.flatnonzero(begins < sequence)
    entries = np.zeros((rows, sequence), np.int64)
    # Of documents that begin before the sample does the last one, which is written last, is open at its first token.
    entries[row[numbers], np.maximum(begins[numbers], 0)] = numbers
    found: F32 = weights[np.maximum.accumulate(entries, axis=1)]
    return found


def no_details(rows: int, sequence: int) -> Details:
    shape = (rows, sequence)
    return Details(
        positions=np.zeros(shape, np.int64),
        documents=np.zeros(shape, np.int32),
        loss_mask=np.zeros(shape, np.bool_),
        loss_weights=np.zeros(shape, np.float32),
        bytes=np.zeros(rows, np.int32),
    )


def batch_of(blocks: Samples, index: I64, *, rows: int) -> Batch:
    """Whole `blocks` as a batch of `rows` samples; where there are fewer, the last ones are absent: fully masked."""
    present, sequence = len(blocks), blocks.tokens.shape[1] - 1
    tokens = np.zeros((rows, sequence + 1), np.int64)
    samples, indices = np.full(rows, -1, np.int64), np.full(rows, -1, np.int64)
    tokens[:present], samples[:present], indices[:present] = blocks.tokens, blocks.numbers, index
    zeros = np.zeros(present, np.int64)
    details = details_of(
        blocks, Places(blocks=blocks.numbers, offsets=zeros, hidden=zeros), sequence=sequence, whole=True, rows=rows
    )
    return Batch(tokens=tokens[:, :-1], targets=tokens[:, 1:], samples=samples, index=indices, details=details)


def absent(rows: int, sequence: int) -> Batch:
    """A batch in which no sample is present: it keeps a rank in step with the others and weighs nothing."""
    tokens = np.zeros((rows, sequence + 1), np.int64)
    none = np.full(rows, -1, np.int64)
    details = no_details(rows, sequence)
    return Batch(tokens=tokens[:, :-1], targets=tokens[:, 1:], samples=none, index=none, details=details)
