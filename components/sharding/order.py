"""Which block is which sample: the global order. Pure numpy; nothing is stored and nothing grows with the samples.

Called by the loader, and by whatever wants to know what a sample was. The order is a function of the split's geometry,
the data policy and the global sample index; no rank, worker or layout appears in it. Sample i belongs to epoch
i // n for a split of n blocks, and each epoch holds every block once.

Within an epoch there are two levels, so that reading stays by row groups:

* Groups of G rows (G: blocks in a full row group) are permuted. The full row groups come first in their numbering; the
  rows of the shards' short last row groups, laid end to end, make further ones, and what is left of them after that,
  fewer than G rows, goes into the last window as it is.
* `window` groups that follow one another in that permutation make a window, whose rows are permuted.

Each permutation is a Feistel network over the next power of 4 with cycle walking (Black & Rogaway, "Ciphers with
Arbitrary Finite Domains", CT-RSA 2002), keyed by a hash of (seed, epoch, window).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from shardline.components.common.errors import DamagedData
from shardline.components.sharding.blocks import I64

POLICY_VERSION = 1
_ROUNDS = 8
_U64 = npt.NDArray[np.uint64]


@dataclass(frozen=True, kw_only=True)
class DataPolicy:
    """What the order depends on beside the data set: part of the run's identity, kept in checkpoints.

    Attributes:
        seed: of all permutations.
        window: row groups that are shuffled together.
    """

    seed: int
    window: int
    version: int = POLICY_VERSION

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> DataPolicy:
        """Raises DamagedData for a policy of another version, or none."""
        try:
            policy = DataPolicy(**json.loads(text))
        except (ValueError, TypeError) as error:
            raise DamagedData(f"not a data policy: {text[:80]}", hint="go on from another checkpoint") from error
        if policy.version != POLICY_VERSION:
            raise DamagedData(
                f"the data policy is of version {policy.version}; this release knows version {POLICY_VERSION}",
                hint="use the release of shardline that wrote it, or a newer one",
            )
        return policy


class Geometry:
    """Where the blocks of a split lie: shards of full row groups of `row_group` blocks, each with a short last one."""

    def __init__(self, shard_blocks: Sequence[int], *, row_group: int) -> None:
        blocks = np.asarray(shard_blocks, np.int64)
        self.row_group = row_group
        self.blocks = int(blocks.sum())
        self.full = int((blocks // row_group).sum())
        self.short_rows = int((blocks % row_group).sum())
        self._first_block = _prefix(blocks)
        self._first_group = _prefix(-(-blocks // row_group))
        self._first_full = _prefix(blocks // row_group)
        self._first_short = _prefix(blocks % row_group)

    def locate(self, blocks: I64) -> tuple[I64, I64]:
        """For block numbers: the row group's number within the split, and the row in it."""
        shard = np.searchsorted(self._first_block, blocks, side="right") - 1
        group, row = np.divmod(blocks - self._first_block[shard], self.row_group)
        return self._first_group[shard] + group, row

    def first_of(self, group: int) -> int:
        """The number of the first block of a row group."""
        shard = int(np.searchsorted(self._first_group, group, side="right")) - 1
        return int(self._first_block[shard] + (group - self._first_group[shard]) * self.row_group)

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


class SampleOrder:
    """The order of a split under a policy."""

    def __init__(self, geometry: Geometry, policy: DataPolicy) -> None:
        self._geometry = geometry
        self._policy = policy
        self.blocks = geometry.blocks
        self._groups = geometry.full + geometry.short_rows // geometry.row_group
        self._rest = geometry.short_rows % geometry.row_group
        self._windows = max(1, -(-self._groups // policy.window))

    def blocks_of(self, samples: I64) -> I64:
        """The block number of each global sample index; int64, any shape, any order."""
        samples = np.asarray(samples, np.int64)
        flat = samples.ravel()
        epochs, places = np.divmod(flat, self.blocks)
        windows = self.window_of(flat)
        out = np.empty_like(flat)
        for epoch, window in np.unique(np.stack([epochs, windows]), axis=1).T.tolist():
            here = np.flatnonzero((epochs == epoch) & (windows == window))
            start, _ = self._bounds(window)
            out[here] = self._in_window(epoch, window, places[here] - start)
        return out.reshape(samples.shape)

    def window_of(self, samples: I64) -> I64:
        """The window, within its epoch, of each global sample index."""
        rows = self._policy.window * self._geometry.row_group
        return np.minimum(np.asarray(samples, np.int64) % self.blocks // rows, self._windows - 1)

    def window_end(self, sample: int) -> int:
        """The first global sample index after the window that `sample` is in."""
        window = int(self.window_of(np.array([sample]))[0])
        return sample // self.blocks * self.blocks + self._bounds(window)[1]

    def _bounds(self, window: int) -> tuple[int, int]:
        """The places in an epoch, from and to, that a window takes up."""
        rows = self._policy.window * self._geometry.row_group
        return window * rows, self.blocks if window == self._windows - 1 else (window + 1) * rows

    def _in_window(self, epoch: int, window: int, places: I64) -> I64:
        start, end = self._bounds(window)
        row_group = self._geometry.row_group
        mixed = permute(places, end - start, self._keys(epoch, window))
        slot, row = np.divmod(mixed, row_group)
        group = window * self._policy.window + slot
        out = np.empty_like(places)
        rest = group >= self._groups
        if rest.any():
            out[rest] = self._geometry.short_row(self._geometry.short_rows - self._rest + row[rest])
        whole = ~rest
        out[whole] = self._virtual(permute(group[whole], self._groups, self._keys(epoch, -1)), row[whole])
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

    def _keys(self, epoch: int, window: int) -> _U64:
        """The round keys of a window's permutation; window -1 stands for that of the groups."""
        text = json.dumps(["shardline order", POLICY_VERSION, self._policy.seed, epoch, window]).encode()
        return np.frombuffer(hashlib.blake2b(text, digest_size=8 * _ROUNDS).digest(), "<u8").astype(np.uint64)


def permute(values: I64, size: int, keys: _U64) -> I64:
    """Where each of `values`, all in [0, size), goes under the permutation of [0, size) that `keys` choose.

    Args:
        keys: uint64, one for each round; an even number of them.
    """
    if size <= 1 or not len(values):
        return np.zeros_like(values)
    half = np.uint64(max(1, -(-(size - 1).bit_length() // 2)))
    out = _feistel(values.astype(np.uint64), half, keys)
    walking = np.flatnonzero(out >= size)
    while len(walking):
        out[walking] = _feistel(out[walking], half, keys)
        walking = walking[out[walking] >= size]
    return out.astype(np.int64)


def _feistel(values: _U64, half: np.uint64, keys: _U64) -> _U64:
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = values >> half, values & mask
    for key in keys:
        left, right = right, left ^ (_mix(right + key) & mask)
    return (left << half) | right


def _mix(values: _U64) -> _U64:
    # The finaliser of splitmix64 (Steele, Lea & Flood 2014; the constants are Stafford's "Mix13").
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _prefix(counts: I64) -> I64:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
