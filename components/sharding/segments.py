"""Reading ahead: this rank's samples of one stream, row group by row group. Called by the loader.

A segment is what is shuffled together: a window of row groups, as far as it lies in one stage. The rows of each row
group are copied to slots of one buffer, where they stay until they are given out, in any order. The next segment is
read as fast as slots become free: together they take little more memory than one, and the same memory all the time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardline.components.sharding.blocks import I32, I64, Blocks, Samples, Tokens, concatenate, distinct
from shardline.components.sharding.dataset import Split
from shardline.components.sharding.order import Places, StageOrder
from shardline.components.sharding.rowgroup import RowGroup

#: Row groups of the next segment that are read before they are due.
_AHEAD = 4


class Slots:
    """Rows of `width` tokens in memory. Slots are reserved and given back by one thread, and filled by any."""

    def __init__(self, *, width: int, dtype: np.dtype[np.unsignedinteger[npt.NBitBase]]) -> None:
        self._rows = np.empty((0, width), dtype)
        self._free = np.empty(0, np.int32)
        self._taken = self._rows
        self._lock = threading.Lock()
        self._local = threading.local()

    def scratch(self, size: int) -> memoryview:
        """`size` bytes of memory of the calling thread, the same ones each time."""
        found: memoryview | None = getattr(self._local, "scratch", None)
        if found is None:
            found = self._local.scratch = np.empty(size, np.uint8).data
        return found

    def make_room(self, count: int) -> None:
        """Have `count` slots, at least, in all. The system gives memory for them as they are filled."""
        if len(self._rows) < count:
            self._grow(count - len(self._rows))

    @property
    def free(self) -> int:
        """How many slots there are for `reserve` without more memory."""
        return len(self._free)

    def reserve(self, count: int) -> I32:
        """Slots for `count` rows; more memory is taken where there are too few."""
        if self.free < count:
            self._grow(max(count - self.free, len(self._rows) // 8))
        taken, self._free = self._free[len(self._free) - count :], self._free[: len(self._free) - count]
        return taken

    def _grow(self, count: int) -> None:
        before = len(self._rows)
        rows = np.empty((before + count, self._rows.shape[1]), self._rows.dtype)
        with self._lock:
            rows[:before] = self._rows
            self._rows = rows
        self._free = np.concatenate([self._free, np.arange(before, before + count, dtype=np.int32)])

    def fill(self, slots: I32, rows: Tokens) -> None:
        # Not while the rows move to a larger place.
        with self._lock:
            self._rows[slots] = rows

    def take(self, slots: I32) -> Tokens:
        """The rows in `slots`, which are free again. They are gone with the next call."""
        if len(self._taken) < len(slots):
            self._taken = np.empty((len(slots), self._rows.shape[1]), self._rows.dtype)
        # "clip" writes to the place at once; there is nothing to clip.
        rows = np.take(self._rows, slots, axis=0, out=self._taken[: len(slots)], mode="clip")
        self._free = np.concatenate([self._free, slots])
        return rows


class Segment:
    """Samples at `places`, in order, of as many tokens as `slots` has room for in a row, less one."""

    def __init__(
        self, split: Split, threads: ThreadPoolExecutor, *, places: Places, slots: Slots, sequence: int
    ) -> None:
        self.places = places
        self.count = len(places.blocks)
        self._split, self._threads, self._slots = split, threads, slots
        self._sequence = sequence
        self._taken = 0
        self._slot_of = np.empty(self.count, np.int32)
        self._plan()

    def _plan(self) -> None:
        """Which row groups there are, in the order in which they are needed first, and which samples each has."""
        groups, self._rows = self._split.geometry.locate(self.places.blocks)
        # In the order of their rows: what is wanted of a row group is often all of it, and then needs no picking.
        by_row = np.lexsort((self._rows, groups))
        # As `np.unique`, which would sort once more; see also `distinct`.
        inside = groups[by_row]
        begins = np.ones(self.count, bool)
        begins[1:] = inside[1:] != inside[:-1]
        first, turn = np.flatnonzero(begins), np.cumsum(begins) - 1
        numbers = inside[first]
        needed = np.full(len(numbers), self.count)
        np.minimum.at(needed, turn, by_row)
        order = np.argsort(needed)
        members = np.split(by_row, first[1:])
        self._numbers = numbers[order]
        self._members = [members[which] for which in order.tolist()] if self.count else []
        #: For each sample, which of them it is in.
        self._turns = np.empty(self.count, np.int32)
        for number, here in enumerate(self._members):
            self._turns[here] = number
        self._needed = np.maximum.accumulate(self._turns) if self.count else self._turns
        largest = max(map(len, self._members), default=0)
        self._slots.make_room(self.count + (_AHEAD + 1) * largest)
        self._reads: list[Future[RowGroup]] = []
        self._read: list[RowGroup] = []

    def begin(self) -> None:
        """Read all row groups."""
        self._begin(len(self._members))

    def begin_early(self, share: float) -> None:
        """Read the first `share` of the row groups and a few more, as far as there are free slots."""
        self._begin(min(len(self._members), int(share * len(self._members)) + _AHEAD), early=True)

    def _begin(self, wanted: int, *, early: bool = False) -> None:
        for turn in range(len(self._reads), wanted):
            here = self._members[turn]
            if early and self._slots.free < len(here):
                break
            slots = self._slot_of[here] = self._slots.reserve(len(here))
            self._reads.append(self._threads.submit(self._fill, turn, slots))

    def _fill(self, turn: int, slots: I32) -> RowGroup:
        scratch = self._slots.scratch(self._split.group_bytes)
        group = self._split.read_group(int(self._numbers[turn]), into=scratch)
        here = self._members[turn]
        rows = self._rows[here]
        if self._sequence == self._split.sequence:
            whole = len(here) == len(group.tokens)
            self._slots.fill(slots, group.tokens if whole else group.tokens[rows])
        else:
            parts = np.lib.stride_tricks.sliding_window_view(group.tokens, self._sequence + 1, axis=1)
            self._slots.fill(slots, parts[rows, self.places.offsets[here]])
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
        start, stop = self._taken, self._taken + count
        self.begin()
        while len(self._read) <= int(self._needed[stop - 1]):
            self._read.append(self._reads[len(self._read)].result())
        self._taken = stop
        return self._slots.take(self._slot_of[start:stop]), start, stop

    def samples(self, start: int, stop: int) -> Samples:
        """What is known of samples that were taken, in their order."""
        turns = self._turns[start:stop]
        parts: list[Blocks] = []
        places: list[I64] = []
        for turn in distinct(turns).tolist():
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
        self._slots = Slots(width=stage.stage.sequence + 1, dtype=split.dtype)
        self._segments: list[Segment] = []

    def take(self, count: int, put: Callable[[Segment, Tokens, int, int], None]) -> None:
        """Hand the next `count` samples to `put`, in pieces: the segment, tokens, from where to where in it."""
        while count:
            current = self._current()
            some = min(count, current.left)
            put(current, *current.take(some))
            count -= some

    def _current(self) -> Segment:
        """The segment that samples are taken from, while of the next one is read what there is room for."""
        while True:
            if not self._segments:
                self._segments.append(self._plan())
            current = self._segments[0]
            if current.left:
                self._read_ahead(current.share_taken)
                return current
            self._segments.pop(0)

    def _read_ahead(self, share_taken: float) -> None:
        if not share_taken:
            # Whoever waits for the very first batch need not wait for the plan of the next segment, too.
            return
        if len(self._segments) < 2:
            self._segments.append(self._plan())
        self._segments[1].begin_early(share_taken)

    def _plan(self) -> Segment:
        stage, stream = self._stage, self._stream
        start, end = self._next_ordinal, stage.segment_end(stream, self._next_ordinal)
        self._next_ordinal = end
        draws = self._share.of(stage, stage.join(stream, np.arange(start, end, dtype=np.int64)))
        _, ordinals = stage.split(draws)
        places = stage.places(stream, ordinals)
        return Segment(self._split, self._threads, places=places, slots=self._slots, sequence=stage.stage.sequence)
