"""Reading ahead: this rank's samples of one stream, row group by row group. Called by the loader.

A segment is what is shuffled together: a window of row groups, as far as it lies in one stage. Its samples go into one
buffer, in their order; what was given out is returned to the system page by page, and the next segment is filled as
fast as this one is emptied: together they take little more memory than one.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from shardline.components.sharding.blocks import I64, Blocks, Samples, Tokens, concatenate
from shardline.components.sharding.dataset import RowGroup, Split
from shardline.components.sharding.order import Places, StageOrder

#: Row groups of the next segment that are read before they are due.
_AHEAD = 4


class Segment:
    """Samples at `places`, in order, of `sequence` tokens; `ordinals` are their draws of the stream."""

    def __init__(self, split: Split, threads: ThreadPoolExecutor, *, places: Places, sequence: int) -> None:
        self.places = places
        self.count = len(places.blocks)
        self._split, self._threads = split, threads
        self._taken = self._released = 0
        self._width = sequence + 1
        size = max(1, self.count * self._width * split.dtype.itemsize)
        self._memory = mmap.mmap(-1, size)
        self._tokens = np.frombuffer(self._memory, split.dtype, self.count * self._width).reshape(
            self.count, self._width
        )
        self._plan()

    def _plan(self) -> None:
        """Which row groups there are, in the order in which they are needed first, and which samples each has."""
        groups, self._rows = self._split.geometry.locate(self.places.blocks)
        by_group = np.argsort(groups, kind="stable")
        numbers, first = np.unique(groups[by_group], return_index=True)
        order = np.argsort(by_group[first], kind="stable")
        members = np.split(by_group, first[1:])
        self._numbers = numbers[order]
        self._members = [members[which] for which in order.tolist()] if self.count else []
        #: For each sample, which of them it is in.
        self._turns = np.empty(self.count, np.int32)
        for turn, here in enumerate(self._members):
            self._turns[here] = turn
        self._needed = np.maximum.accumulate(self._turns) if self.count else self._turns
        self._reads: list[Future[RowGroup]] = []
        self._read: list[RowGroup] = []

    def begin(self, share: float = 1.0) -> None:
        """Read the first `share` of the row groups, and a few more."""
        wanted = min(len(self._members), int(share * len(self._members)) + _AHEAD)
        for turn in range(len(self._reads), wanted):
            self._reads.append(self._threads.submit(self._fill, turn))

    def _fill(self, turn: int) -> RowGroup:
        group = self._split.read_group(int(self._numbers[turn]))
        here = self._members[turn]
        rows, offsets = self._rows[here], self.places.offsets[here]
        if self._width == group.tokens.shape[1]:
            self._tokens[here] = group.tokens[rows]
        else:
            parts = np.lib.stride_tricks.sliding_window_view(group.tokens, self._width, axis=1)
            self._tokens[here] = parts[rows, offsets]
        group.drop_tokens()
        return group

    @property
    def left(self) -> int:
        return self.count - self._taken

    @property
    def share_taken(self) -> float:
        return self._taken / max(1, self.count)

    def take(self, count: int) -> tuple[Tokens, int, int]:
        """The tokens of the next `count` samples, and from where to where they are in the segment.

        The tokens are gone with the next call.
        """
        self._release()
        start, stop = self._taken, self._taken + count
        self.begin()
        while len(self._read) <= int(self._needed[stop - 1]):
            self._read.append(self._reads[len(self._read)].result())
        self._taken = stop
        return self._tokens[start:stop], start, stop

    def _release(self) -> None:
        """Give the memory of what was taken back to the system."""
        page = mmap.PAGESIZE
        end = self._taken * self._width * self._tokens.dtype.itemsize // page * page
        if end - self._released >= 64 * page and hasattr(self._memory, "madvise"):
            self._memory.madvise(mmap.MADV_DONTNEED, self._released, end - self._released)
            self._released = end

    def samples(self, start: int, stop: int) -> Samples:
        """What is known of samples that were taken, in their order."""
        turns = self._turns[start:stop]
        parts: list[Blocks] = []
        places: list[I64] = []
        for turn in np.unique(turns).tolist():
            here = np.flatnonzero(turns == turn)
            parts.append(self._read[turn].blocks().take(self._rows[start + here]))
            places.append(here)
        back = np.empty(stop - start, np.int64)
        back[np.concatenate(places)] = np.arange(stop - start)
        return concatenate(parts).take(back)


@dataclass(frozen=True)
class Share:
    """Which draws of a stage are this rank's: microbatch j of a step is rank j % dp_size's."""

    microbatch: int
    dp_rank: int
    dp_size: int
    first_step: int

    def of(self, stage: StageOrder, draws: I64) -> I64:
        """Those of `draws` that this rank gets, from the first step on."""
        place = draws % stage.stage.global_batch // self.microbatch
        mine = (place % self.dp_size == self.dp_rank) & (stage.steps_of(draws) >= self.first_step)
        chosen: I64 = draws[mine]
        return chosen


class StreamReader:
    """This rank's samples of one stream of a stage, from `first_ordinal` on."""

    def __init__(
        self,
        split: Split,
        threads: ThreadPoolExecutor,
        *,
        stage: StageOrder,
        stream: int,
        share: Share,
        first_ordinal: int,
    ) -> None:
        self._split, self._threads = split, threads
        self._stage, self._stream, self._share = stage, stream, share
        self._next_ordinal = first_ordinal
        self._segments: list[Segment] = []

    def take(self, count: int, put: Callable[[Segment, Tokens, int, int], None]) -> None:
        """Hand the next `count` samples to `put`, in pieces: the segment, tokens, from where to where in it."""
        while count:
            current = self._current()
            some = min(count, current.left)
            tokens, start, stop = current.take(some)
            put(current, tokens, start, stop)
            self._segments[1].begin(current.share_taken)
            count -= some

    def _current(self) -> Segment:
        while True:
            while len(self._segments) < 2:
                self._segments.append(self._plan())
            if self._segments[0].left:
                return self._segments[0]
            self._segments.pop(0)

    def _plan(self) -> Segment:
        stage, stream = self._stage, self._stream
        start, end = self._next_ordinal, stage.segment_end(stream, self._next_ordinal)
        self._next_ordinal = end
        draws = self._share.of(stage, stage.join(stream, np.arange(start, end, dtype=np.int64)))
        _, ordinals = stage.split(draws)
        places = stage.places(stream, ordinals)
        return Segment(self._split, self._threads, places=places, sequence=stage.stage.sequence)
