"""Batches for one data-parallel rank. No torch, no worker processes: threads read ahead, as decoding frees the GIL.

Called by training (`Loader`) and evaluation (`held_out_batches`). The world appears only in which microbatches of a
global batch are given out here: microbatch j goes to rank j % dp_size, in its round j // dp_size. Every rank has the
same number of rounds; where it has no microbatch, the batch is absent (fully masked).

Errors: those of the data set, in the thread that iterates.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

import numpy as np

from shardline.components.sharding.batch import Batch, absent, batch_of
from shardline.components.sharding.blocks import I32, I64, Blocks, Samples, concatenate
from shardline.components.sharding.dataset import Split
from shardline.components.sharding.order import SampleOrder

_THREADS = 2


class Loader:
    """Endless steps of a split's samples in global order, from `position` on.

    This rank's samples of two windows are in memory at most: of the current one and of the next.

    Args:
        order: of `split`.
        global_batch, microbatch: samples in a step, and in a batch; the second divides the first.
        dp_rank, dp_size: this data-parallel rank, and how many there are.
        position: global samples consumed so far. After each step `loader.position` has grown by `global_batch`.
    """

    def __init__(
        self,
        split: Split,
        *,
        order: SampleOrder,
        global_batch: int,
        microbatch: int,
        dp_rank: int,
        dp_size: int,
        position: int,
    ) -> None:
        if global_batch % microbatch:
            raise ValueError(f"microbatch {microbatch} does not divide global_batch {global_batch}")
        self.position = position
        self._split = split
        self._order = order
        self._global_batch = global_batch
        self._microbatch = microbatch
        self._rounds = -(-global_batch // microbatch // dp_size)
        mine = np.arange(global_batch, dtype=np.int64).reshape(-1, microbatch)[dp_rank::dp_size]
        self._offsets = mine.ravel()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="loader")
        self._windows: list[_Window] = []

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop reading ahead; returns when the threads have ended."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._windows = []

    def __iter__(self) -> Iterator[list[Batch]]:
        return self

    def __next__(self) -> list[Batch]:
        """The next step: this rank's batches, one for each round."""
        samples = self.position + self._offsets
        rows = self._rounds * self._microbatch
        read = self._read(samples) if len(samples) else None
        step = batch_of(read, samples, rows=rows) if read else absent(rows, self._split.sequence)
        self.position += self._global_batch
        return [step.rows(start, start + self._microbatch) for start in range(0, rows, self._microbatch)]

    def _read(self, samples: I64) -> Samples:
        parts = []
        done = 0
        while done < len(samples):
            window = self._window_at(int(samples[done]))
            count = int(np.searchsorted(samples[done:], window.end))
            parts.append(window.read(count))
            done += count
        return concatenate(parts)

    def _window_at(self, sample: int) -> _Window:
        """The window that `sample` is in; reading of it, and of the one after it, has begun."""
        while self._windows and self._windows[0].end <= sample:
            self._windows.pop(0)
        while len(self._windows) < 2:
            start = self._windows[-1].end if self._windows else sample
            self._windows.append(self._begin(start))
        return self._windows[0]

    def _begin(self, start: int) -> _Window:
        end = self._order.window_end(start)
        samples = self._mine(start, end)
        groups, rows = self._split.geometry.locate(self._order.blocks_of(samples))
        return _Window(self._split, self._threads, end=end, groups=groups, rows=rows)

    def _mine(self, start: int, end: int) -> I64:
        """This rank's samples in [start, end), in order."""
        base = self.position
        first, last = (start - base) // self._global_batch, -(-(end - base) // self._global_batch)
        steps = base + np.arange(first, last, dtype=np.int64) * self._global_batch
        samples = (steps[:, None] + self._offsets).ravel()
        return samples[(samples >= start) & (samples < end)]


class _Window:
    """Samples up to `end`. Each row group is read once, by the threads, in the order in which they are needed first."""

    def __init__(self, split: Split, threads: ThreadPoolExecutor, *, end: int, groups: I64, rows: I64) -> None:
        count = len(groups)
        self.end = end
        self._split = split
        self._at = 0
        self._numbers = np.empty(count, np.int64)
        self._tokens = np.empty((count, split.sequence + 1), split.dtype)
        self._length = np.empty(count, np.int32)
        self._bytes = np.empty(count, np.int32)
        self._starts: list[I32] = [np.empty(0, np.int32)] * count
        by_group = np.argsort(groups, kind="stable")
        numbers, first = np.unique(groups[by_group], return_index=True)
        places = np.split(by_group, first[1:])
        self._groups = groups
        self._reads: dict[int, Future[None]] = {}
        for which in np.argsort(by_group[first]).tolist() if count else []:
            place = places[which]
            self._reads[int(numbers[which])] = threads.submit(self._fill, int(numbers[which]), place, rows[place])

    def _fill(self, group: int, places: I64, rows: I64) -> None:
        """Put rows of a row group where the samples have their places."""
        blocks = self._split.read_group(group)
        self._numbers[places] = blocks.numbers[rows]
        self._tokens[places] = blocks.tokens[rows]
        self._length[places] = blocks.length[rows]
        self._bytes[places] = blocks.bytes[rows]
        bounds = blocks.bounds.tolist()
        for place, row in zip(places.tolist(), rows.tolist(), strict=True):
            self._starts[place] = blocks.starts[bounds[row] : bounds[row + 1]]

    def read(self, count: int) -> Samples:
        """The next `count` samples, without copying their tokens."""
        here = slice(self._at, self._at + count)
        self._at += count
        for group in set(self._groups[here].tolist()):
            self._reads[group].result()
        starts = self._starts[here]
        return Samples(
            numbers=self._numbers[here],
            tokens=self._tokens[here],
            length=self._length[here],
            bytes=self._bytes[here],
            bounds=np.cumsum([0, *map(len, starts)], dtype=np.int64),
            starts=np.concatenate(starts),
        )


def held_out_batches(split: Split, *, microbatch: int, dp_rank: int, dp_size: int) -> Iterator[Batch]:
    """Every block of a split once over all ranks, in order; each rank gets the same number of batches.

    The last samples of the last batch, and whole batches at the end, may be absent. `index` is the block number.
    """
    read: dict[int, Blocks] = {}
    for round_ in range(-(-split.blocks // (microbatch * dp_size))):
        first = (round_ * dp_size + dp_rank) * microbatch
        numbers = np.arange(first, min(first + microbatch, split.blocks), dtype=np.int64)
        if not len(numbers):
            yield absent(microbatch, split.sequence)
            continue
        groups, rows = split.geometry.locate(numbers)
        wanted = np.unique(groups).tolist()
        read = {group: read[group] if group in read else split.read_group(group) for group in wanted}
        blocks = concatenate([read[group].take(rows[groups == group]) for group in wanted])
        yield batch_of(blocks, numbers, rows=microbatch)
