"""Where blocks lie: shards of full row groups, each with a short last one. Pure numpy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardline.components.sharding.blocks import I64


class Geometry:
    """Shards of `shard_blocks` blocks each, in row groups of `row_group` blocks.

    Args:
        first_blocks: the number, within the split, of each shard's first block; by default the shards are all of the
            split's, in order.
    """

    def __init__(
        self, shard_blocks: Sequence[int], *, row_group: int, first_blocks: Sequence[int] | None = None
    ) -> None:
        blocks = np.asarray(shard_blocks, np.int64)
        self.row_group = row_group
        self.blocks = int(blocks.sum())
        self.full = int((blocks // row_group).sum())
        self.short_rows = int((blocks % row_group).sum())
        self._first_block = _prefix(blocks) if first_blocks is None else np.asarray(first_blocks, np.int64)
        self._first_group = _prefix(-(-blocks // row_group))
        self._first_full = _prefix(blocks // row_group)
        self._first_short = _prefix(blocks % row_group)

    def locate(self, blocks: I64) -> tuple[I64, I64]:
        """For block numbers of a whole split: the row group's number within the split, and the row in it."""
        shard = np.searchsorted(self._first_block, blocks, side="right") - 1
        group, row = np.divmod(blocks - self._first_block[shard], self.row_group)
        return self._first_group[shard] + group, row

    def in_shard(self, group: int) -> tuple[int, int]:
        """The shard that a row group is in, and its number there."""
        shard = int(np.searchsorted(self._first_group, group, side="right")) - 1
        return shard, group - int(self._first_group[shard])

    def first_of(self, group: int) -> int:
        """The number of the first block of a row group."""
        shard, number = self.in_shard(group)
        return int(self._first_block[shard]) + number * self.row_group

    def full_row(self, group: I64, row: I64) -> I64:
        """Block numbers, for rows of the full row groups numbered on their own."""
        shard = np.searchsorted(self._first_full, group, side="right") - 1
        blocks: I64 = self._first_block[shard] + (group - self._first_full[shard]) * self.row_group + row
        return blocks

    def short_row(self, row: I64) -> I64:
        """Block numbers, for rows of the short row groups laid end to end."""
        shard = np.searchsorted(self._first_short, row, side="right") - 1
        full = self._first_full[shard + 1] - self._first_full[shard]
        blocks: I64 = self._first_block[shard] + full * self.row_group + row - self._first_short[shard]
        return blocks


def _prefix(counts: I64) -> I64:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
