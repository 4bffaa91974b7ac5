"""Batches for one data-parallel rank. No torch, no worker processes: threads read ahead, as decoding frees the GIL.

Some threads read and decode row groups; one more puts the next steps together from them while these are consumed, so
that the thread that iterates does next to nothing.

Called by training (`Loader`) and evaluation (`held_out_batches`). The world appears only in which microbatches of a
global batch are given out here: microbatch j goes to rank j % dp_size, in its round j // dp_size. Every rank has the
same number of rounds; where it has no microbatch, the batch is absent (fully masked).

Errors: those of the data set, in the thread that iterates.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

import numpy as np

from shardline.components.sharding.batch import Batch, Details, absent, batch_of, details_of, no_details
from shardline.components.sharding.blocks import I64, Blocks, Tokens, concatenate, distinct
from shardline.components.sharding.dataset import Split
from shardline.components.sharding.order import Places, SampleOrder, StageOrder
from shardline.components.sharding.segments import Segment, Share, StreamReader

#: Reading from elsewhere is waiting, mostly; reading from here is decoding.
THREADS_LOCAL, THREADS_REMOTE = 2, 8
#: Steps are put together a few at a time: as many as make about this many tokens, up to so many. Each chunk is handed
#: from thread to thread, which costs more than its copying where it is small. The first ones come alone, as they need
#: the fewest row groups.
_CHUNK_TOKENS, _CHUNK_STEPS = 5 << 16, 64
#: So many times that are ready before they are asked for: a thread that waits for another one to wake up waits long.
_CHUNKS_AHEAD = 2


class Loader:
    """Endless steps of a split's samples in global order, from the data position `position` on.

    Args:
        order: of `split`.
        microbatch: samples in a batch; it divides the global batch of every stage.
        dp_rank, dp_size: this data-parallel rank, and how many there are.
        position: as `order.position_at` has it. `loader.position` is that of the next step.

    Attributes:
        step: the next optimizer step.
    """

    def __init__(
        self, split: Split, *, order: SampleOrder, microbatch: int, dp_rank: int, dp_size: int, position: int
    ) -> None:
        for stage in order.policy.stages:
            if stage.global_batch % microbatch:
                raise ValueError(f"microbatch {microbatch} does not divide global_batch {stage.global_batch}")
        self.step = order.step_at(position)
        self._split, self._order = split, order
        self._microbatch, self._dp_rank, self._dp_size = microbatch, dp_rank, dp_size
        threads = THREADS_LOCAL if split.is_local else THREADS_REMOTE
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="loader")
        self._assembly = ThreadPoolExecutor(1, thread_name_prefix="loader-assembly")
        self._chunk: _Chunk | None = None
        self._ahead: deque[Future[_Chunk]] = deque()
        # Of the assembly's thread alone.
        self._upcoming, self._most = self.step, 1
        self._stage: StageOrder | None = None
        self._offsets = np.empty(0, np.int64)
        self._readers: list[StreamReader] = []
        self._buffers = _Buffers()

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop reading ahead; returns when the threads have ended."""
        for threads in (self._threads, self._assembly):
            threads.shutdown(wait=True, cancel_futures=True)
        self._readers, self._chunk = [], None
        self._ahead.clear()

    @property
    def position(self) -> int:
        """The data position of the next step."""
        return self._order.position_at(self.step)

    def __iter__(self) -> Iterator[list[Batch]]:
        return self

    def __next__(self) -> list[Batch]:
        """The next step: this rank's batches, one for each round."""
        if self._chunk is None or self.step >= self._chunk.end:
            self._chunk = self._next_chunk()
        batches = self._chunk.batches(self.step, self._microbatch)
        self.step += 1
        return batches

    def _next_chunk(self) -> _Chunk:
        while len(self._ahead) <= _CHUNKS_AHEAD:
            self._ahead.append(self._assembly.submit(self._read_chunk))
        return self._ahead.popleft().result()

    def _read_chunk(self) -> _Chunk:
        first = self._upcoming
        stage = self._order.stage_at(first)
        if stage is not self._stage:
            self._enter(stage, first)
        offsets = self._offsets
        batch, sequence = stage.stage.global_batch, stage.stage.sequence
        rounds = -(-batch // self._microbatch // self._dp_size)
        rows = rounds * self._microbatch
        count = min(max(1, _CHUNK_TOKENS // (rows * sequence)), _CHUNK_STEPS, self._most)
        if stage.last is not None:
            count = min(count, stage.last - first)
        draws = stage.draws_at(np.arange(first, first + count))[:, None] + offsets
        chunk = _Chunk(
            stage, self._split, first=first, rows=rows, index=stage.first_index + draws, buffers=self._buffers
        )
        streams, _ = stage.split(draws.ravel())
        for number, reader in enumerate(self._readers):
            chunk.fill(reader, chunk.places if len(self._readers) == 1 else chunk.places[streams == number])
        self._upcoming, self._most = chunk.end, 2 * count
        return chunk

    def _enter(self, stage: StageOrder, step: int) -> None:
        """Begin to read a stage, at `step`."""
        self._stage = stage
        # Which samples of a global batch are this rank's, in its order.
        batch = np.arange(stage.stage.global_batch, dtype=np.int64).reshape(-1, self._microbatch)
        self._offsets = batch[self._dp_rank :: self._dp_size].ravel()
        share = Share(self._microbatch, self._dp_rank, self._dp_size, step)
        first = int(stage.draws_at(np.array([step]))[0])
        self._readers = [
            StreamReader(self._split, self._threads, stage=stage, stream=number, share=share, first_ordinal=ordinal)
            for number, ordinal in enumerate(stage.drawn_before(first))
        ]


class _Buffers:
    """Memory for the tokens of chunks, given out again once no array looks at it: new memory is dear.

    Called by one thread.
    """

    #: References to a buffer that is not in use: the list's, and that of the call that counts them.
    _FREE = 2

    def __init__(self) -> None:
        self._kept: list[I64] = []

    def take(self, rows: int, width: int) -> I64:
        """int64[rows, width], with any content."""
        size = rows * width
        free = [place for place in range(len(self._kept)) if sys.getrefcount(self._kept[place]) <= self._FREE]
        fitting = [place for place in free if len(self._kept[place]) >= size]
        if fitting:
            return self._kept[fitting[0]][:size].reshape(rows, width)
        # Of another stage, or of the first chunks.
        for place in reversed(free):
            del self._kept[place]
        self._kept.append(np.empty(size, np.int64))
        return self._kept[-1].reshape(rows, width)


class _Chunk:
    """Some steps of one stage: `rows` samples each, of which the last ones may be absent.

    Args:
        index: int64[steps, m], the global sample indices of those that are there.
        buffers: for the tokens.

    Attributes:
        places: of those that are there, counted through all rows.
    """

    def __init__(
        self, stage: StageOrder, split: Split, *, first: int, rows: int, index: I64, buffers: _Buffers
    ) -> None:
        self.steps, present = index.shape
        self.first, self.end = first, first + self.steps
        self._rows, self._sequence = rows, stage.stage.sequence
        self._whole = self._sequence == split.sequence
        places = np.arange(self.steps * rows).reshape(self.steps, rows)
        self.places = places[:, :present].ravel()
        self._index = np.full(self.steps * rows, -1, np.int64)
        self._index[self.places] = index.ravel()
        self._samples = np.full(self.steps * rows, -1, np.int64)
        self._tokens = buffers.take(self.steps * rows, self._sequence + 1)
        if present < rows:
            self._tokens[places[:, present:].ravel()] = 0
        self._parts: list[tuple[Segment, int, int, I64]] = []
        self._details: Details | None = None

    def fill(self, reader: StreamReader, places: I64) -> None:
        """Read the samples that belong at `places`, counted through all rows."""
        done = 0

        def put(segment: Segment, tokens: Tokens, start: int, stop: int) -> None:
            nonlocal done
            here = places[done : done + stop - start]
            done += stop - start
            self._tokens[_as_slice(here)] = tokens
            self._samples[here] = segment.places.blocks[start:stop]
            self._parts.append((segment, start, stop, here))

        reader.take(len(places), put)

    def batches(self, step: int, microbatch: int) -> list[Batch]:
        begin = (step - self.first) * self._rows
        return [self._batch(start, start + microbatch) for start in range(begin, begin + self._rows, microbatch)]

    def _batch(self, start: int, stop: int) -> Batch:
        tokens = self._tokens[start:stop]
        return Batch(
            tokens=tokens[:, :-1],
            targets=tokens[:, 1:],
            samples=self._samples[start:stop],
            index=self._index[start:stop],
            details=lambda: self._all_details().rows(start, stop),
        )

    def _all_details(self) -> Details:
        if self._details is None:
            out = no_details(len(self._samples), self._sequence)
            for segment, start, stop, here in self._parts:
                places = Places(**{k: getattr(segment.places, k)[start:stop] for k in ("blocks", "offsets", "hidden")})
                samples = segment.samples(start, stop)
                found = details_of(samples, places, sequence=self._sequence, whole=self._whole, rows=len(here))
                for column in Details._fields:
                    getattr(out, column)[here] = getattr(found, column)
            self._details, self._parts = out, []
        return self._details


def _as_slice(places: I64) -> slice | I64:
    """Consecutive places as a slice, which is copied to at full speed."""
    if len(places) and places[-1] - places[0] == len(places) - 1:
        return slice(int(places[0]), int(places[-1]) + 1)
    return places


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
        wanted = distinct(groups).tolist()
        read = {group: read[group] if group in read else split.read_group(group).blocks() for group in wanted}
        blocks = concatenate([read[group].take(rows[groups == group]) for group in wanted])
        yield batch_of(blocks, numbers, rows=microbatch)
