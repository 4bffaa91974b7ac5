"""The endless order of one stream's blocks. Pure numpy; nothing is stored and nothing grows with the blocks.

Ordinal o belongs to epoch o // n for a stream of n blocks, and each epoch holds every block once. Within an epoch there
are two levels, so that reading stays by row groups:

* Groups of G rows (G: blocks in a full row group) are permuted. The full row groups come first in their numbering; the
  rows of the shards' short last row groups, laid end to end, make further ones, and what is left of them after that,
  fewer than G rows, goes into the last window as it is.
* `window` groups that follow one another in that permutation make a window, whose rows are permuted.
"""

from __future__ import annotations

import numpy as np

from shardline.components.sharding.blocks import I64, U64, distinct
from shardline.components.sharding.order.geometry import Geometry
from shardline.components.sharding.order.permutation import permute, round_keys

_ALL_GROUPS = -1


class StreamOrder:
    """The order of the blocks of `geometry`, under a name, a seed and a window."""

    def __init__(self, geometry: Geometry, *, name: str, seed: int, window: int) -> None:
        self.blocks = geometry.blocks
        self._geometry = geometry
        self._name, self._seed, self._window = name, seed, window
        self._groups = geometry.full + geometry.short_rows // geometry.row_group
        self._rest = geometry.short_rows % geometry.row_group
        self._windows = max(1, -(-self._groups // window))

    def blocks_of(self, ordinals: I64) -> I64:
        """The block number of each ordinal; int64, in one dimension, any order."""
        ordinals = np.asarray(ordinals, np.int64)
        epochs, places = np.divmod(ordinals, self.blocks)
        windows = np.minimum(places // self._window_rows, self._windows - 1)
        out = np.empty_like(ordinals)
        # One number for both: sorting pairs takes ten times as long.
        numbers = epochs * self._windows + windows
        for number in distinct(numbers).tolist():
            here = np.flatnonzero(numbers == number)
            epoch, window = divmod(number, self._windows)
            out[here] = self._in_window(epoch, window, places[here] - self._bounds(window)[0])
        return out

    def window_end(self, ordinal: int) -> int:
        """The first ordinal after the window that `ordinal` is in."""
        epoch, place = divmod(ordinal, self.blocks)
        window = min(place // self._window_rows, self._windows - 1)
        return epoch * self.blocks + self._bounds(window)[1]

    @property
    def _window_rows(self) -> int:
        return self._window * self._geometry.row_group

    def _bounds(self, window: int) -> tuple[int, int]:
        """The places in an epoch, from and to, that a window takes up."""
        rows = self._window_rows
        return window * rows, self.blocks if window == self._windows - 1 else (window + 1) * rows

    def _in_window(self, epoch: int, window: int, places: I64) -> I64:
        start, end = self._bounds(window)
        mixed = permute(places, end - start, self._keys(epoch, window))
        slot, row = np.divmod(mixed, self._geometry.row_group)
        group = window * self._window + slot
        out = np.empty_like(places)
        rest = group >= self._groups
        if rest.any():
            out[rest] = self._geometry.short_row(self._geometry.short_rows - self._rest + row[rest])
        whole = ~rest
        # All groups of the window at once: there are few, and many rows of each.
        first = window * self._window
        groups = np.arange(first, min(first + self._window, self._groups), dtype=np.int64)
        mixed_groups = permute(groups, self._groups, self._keys(epoch, _ALL_GROUPS))
        out[whole] = self._virtual(mixed_groups[slot[whole]], row[whole])
        return out

    def _virtual(self, group: I64, row: I64) -> I64:
        """Block numbers of rows of the permuted groups: the full row groups, then those made of short ones."""
        geometry = self._geometry
        out = np.empty_like(group)
        full = group < geometry.full
        out[full] = geometry.full_row(group[full], row[full])
        short = ~full
        if short.any():
            out[short] = geometry.short_row((group[short] - geometry.full) * geometry.row_group + row[short])
        return out

    def _keys(self, epoch: int, window: int) -> U64:
        return round_keys(self._name, self._seed, epoch, window)
