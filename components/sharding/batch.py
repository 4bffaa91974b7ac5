"""A microbatch as the model takes it. Pure numpy: blocks in, records out."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from shardline.components.sharding.blocks import I32, I64, Samples


@dataclass(frozen=True, eq=False, kw_only=True)
class Batch:
    """m samples of T tokens, as a record.

    Attributes:
        tokens: int64[m, T], the inputs; targets: int64[m, T], the token that follows each.
        positions: int64[m, T], from 0 in each document; also at the start of a block that begins inside one.
        documents: int32[m, T], the number of the document within its block, from 0: tokens of different documents
            need not see each other.
        loss_mask: bool[m, T], False where the target is padding.
        samples: int64[m], the block numbers, carried along from where the blocks were read; -1: there is no sample.
        index: int64[m], the global sample indices; -1: there is no sample.
        bytes: int32[m], UTF-8 bytes of the text that the targets stand for.
    """

    tokens: I64
    targets: I64
    positions: I64
    documents: I32
    loss_mask: npt.NDArray[np.bool_]
    samples: I64
    index: I64
    bytes: I32

    def rows(self, start: int, stop: int) -> Batch:
        """The samples from `start` to `stop`, without copying."""
        return Batch(**{each.name: getattr(self, each.name)[start:stop] for each in fields(self)})


def batch_of(blocks: Samples, index: I64, *, rows: int) -> Batch:
    """`blocks` as a batch of `rows` samples; where there are fewer blocks, the last ones are absent: fully masked."""
    present, width = len(blocks), blocks.tokens.shape[1] - 1
    batch = absent(rows, width)
    if not present:
        return batch
    batch.tokens[:present] = blocks.tokens[:, :-1]
    batch.targets[:present] = blocks.tokens[:, 1:]
    row = np.repeat(np.arange(present), np.diff(blocks.bounds))
    starts = np.zeros((present, width), np.int32)
    starts[row, blocks.starts] = blocks.starts
    batch.positions[:present] = np.arange(width) - np.maximum.accumulate(starts, axis=1)
    starts[row, blocks.starts] = 1
    batch.documents[:present] = np.cumsum(starts, axis=1) - 1
    batch.loss_mask[:present] = np.arange(width) < (blocks.length - 1)[:, None]
    batch.samples[:present] = blocks.numbers
    batch.index[:present] = index
    batch.bytes[:present] = blocks.bytes
    return batch


def absent(rows: int, sequence: int) -> Batch:
    """A batch in which no sample is present: it keeps a rank in step with the others and weighs nothing."""
    shape = (rows, sequence)
    return Batch(
        tokens=np.zeros(shape, np.int64),
        targets=np.zeros(shape, np.int64),
        positions=np.zeros(shape, np.int64),
        documents=np.zeros(shape, np.int32),
        loss_mask=np.zeros(shape, np.bool_),
        samples=np.full(rows, -1, np.int64),
        index=np.full(rows, -1, np.int64),
        bytes=np.zeros(rows, np.int32),
    )
