"""How far the composition of batches is from a true shuffle's, and what a window costs. Pure: an order in, numbers out.

Neighbours in a corpus are alike: of one file, one site, one time. So what is measured is where in the corpus a batch's
blocks come from. Under a true shuffle the mean place of n blocks varies from batch to batch with the variance of a
place, divided by n; groups of neighbours that stay together in a window make it vary more. The factor by which it does
is 1 for a true shuffle and n for batches that are cut from the corpus in one piece.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from shardline.components.sharding.blocks import I64
from shardline.components.sharding.order.geometry import Geometry
from shardline.components.sharding.order.stream import StreamOrder

#: Batches that are looked at; more of them would not change the first two digits.
_BATCHES = 4096
_EPOCHS = 32


@dataclass(frozen=True, kw_only=True)
class Quality:
    """Of the batches under a window.

    Attributes:
        window: row groups that are shuffled together; None for a true shuffle, by the same measure.
        clumping: the variance of a batch's mean place in the corpus over a true shuffle's expected one.
        shared: the share of a batch's blocks that have another one of their row group in the batch.
        memory: bytes of tokens that a rank alone holds: a window, of which what was given out makes room for the next.
    """

    window: int | None
    clumping: float
    shared: float
    memory: int


def qualities(geometry: Geometry, *, windows: Iterable[int], batch: int, seed: int, block_bytes: int) -> list[Quality]:
    """The quality of each window, and last a true shuffle's.

    Args:
        batch: samples in a global batch.
        block_bytes: bytes of a block's tokens.
    """
    ordinals = _ordinals(geometry.blocks, batch)
    found = []
    for window in windows:
        order = StreamOrder(geometry, name="quality", seed=seed, window=window)
        blocks = order.blocks_of(ordinals.ravel()).reshape(ordinals.shape)
        held = min(geometry.blocks, window * geometry.row_group) * block_bytes
        found.append(_quality(blocks, geometry, window=window, memory=held))
    everything = StreamOrder(geometry, name="a true shuffle", seed=seed, window=geometry.blocks)
    shuffled = everything.blocks_of(ordinals.ravel())
    found.append(
        _quality(shuffled.reshape(ordinals.shape), geometry, window=None, memory=geometry.blocks * block_bytes)
    )
    return found


def _ordinals(blocks: int, batch: int) -> I64:
    """The samples of batches spread evenly over some epochs: batches of one window alone have its bias in common."""
    count = max(64, min(_BATCHES, blocks * _EPOCHS // batch))
    starts = np.arange(count, dtype=np.int64) * max(batch, blocks * _EPOCHS // count)
    return starts[:, None] + np.arange(batch, dtype=np.int64)


def _quality(blocks: I64, geometry: Geometry, *, window: int | None, memory: int) -> Quality:
    batch = blocks.shape[1]
    # Places are uniform over the corpus: their variance is that of [0, 1).
    places = (blocks + 0.5) / geometry.blocks
    clumping = float(np.mean((places.mean(axis=1) - 0.5) ** 2)) * 12 * batch
    groups = np.sort(geometry.locate(blocks.ravel())[0].reshape(blocks.shape), axis=1)
    same = groups[:, 1:] == groups[:, :-1]
    edge = np.zeros((len(blocks), 1), bool)
    shared = float(np.mean(np.concatenate([same, edge], axis=1) | np.concatenate([edge, same], axis=1)))
    return Quality(window=window, clumping=clumping, shared=shared, memory=memory)
