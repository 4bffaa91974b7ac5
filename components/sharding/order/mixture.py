"""Which stream each draw comes from, in exact proportion to the weights. Pure.

The draws repeat a pattern in which each stream has as many places as its weight, as a whole number, says. There the
places are given as by Tijdeman, "The chairman assignment problem" (Discrete Mathematics 32, 1980): after any number n
of draws a stream with the share w has been drawn w * n times, less than once more or less.
"""

from __future__ import annotations

import functools
import heapq
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from shardline.components.sharding.blocks import I64

#: The longest pattern. Weights that need a longer one are rounded to it: to a share of 1 in 65,536.
LONGEST = 1 << 16


class Pattern:
    """The draws of streams with these weights.

    Attributes:
        counts: int64[k], the draws of each stream in one pattern; `length`: their sum.
    """

    def __init__(self, weights: Sequence[Fraction]) -> None:
        counts = whole_numbers(weights)
        self.length = sum(counts)
        self.counts = np.array(counts, np.int64)
        self._streams = np.array(_assign(tuple(counts)), np.int32)
        self._places = [np.flatnonzero(self._streams == stream) for stream in range(len(counts))]
        self._turns = np.empty(self.length, np.int64)
        for places in self._places:
            self._turns[places] = np.arange(len(places))

    def split(self, draws: I64) -> tuple[npt.NDArray[np.int32], I64]:
        """For draws: the stream of each, and which of that stream's draws it is."""
        if len(self.counts) == 1:
            return np.zeros(len(draws), np.int32), draws
        turn, place = np.divmod(draws, self.length)
        streams = self._streams[place]
        return streams, turn * self.counts[streams] + self._turns[place]

    def join(self, stream: int, ordinals: I64) -> I64:
        """The inverse of `split`: the draws that are a stream's `ordinals`."""
        turn, which = np.divmod(ordinals, int(self.counts[stream]))
        return turn * self.length + self._places[stream][which]

    def drawn(self, stream: int, draws: int) -> int:
        """How many of the first `draws` draws are the stream's."""
        turn, place = divmod(draws, self.length)
        return turn * int(self.counts[stream]) + int(np.searchsorted(self._places[stream], place))


def whole_numbers(weights: Sequence[Fraction]) -> list[int]:
    """The smallest whole numbers in proportion to the weights; nearest ones, each at least 1, where they are large."""
    scale = math.lcm(*(weight.denominator for weight in weights))
    counts = [int(weight * scale) for weight in weights]
    divisor = math.gcd(*counts)
    counts = [count // divisor for count in counts]
    total = sum(counts)
    if total <= LONGEST:
        return counts
    # Largest remainders: whole parts first, what is left goes to those who lost most.
    shares = [Fraction(count * LONGEST, total) for count in counts]
    rounded = [max(1, int(share)) for share in shares]
    by_loss = sorted(range(len(counts)), key=lambda k: (rounded[k] - shares[k], k))
    for stream in by_loss[: max(0, LONGEST - sum(rounded))]:
        rounded[stream] += 1
    return rounded


@functools.lru_cache(maxsize=16)
def _assign(counts: tuple[int, ...]) -> list[int]:
    """The stream of each place of the pattern: of the draws that are due, the one whose time runs out first."""
    length, slack = sum(counts), max(1, 2 * len(counts) - 2)
    waiting = [(_release(0, count, length, slack), stream, 0) for stream, count in enumerate(counts)]
    heapq.heapify(waiting)
    due: list[tuple[int, int, int]] = []
    pattern = []
    for place in range(1, length + 1):
        while waiting and waiting[0][0] <= place:
            _, stream, done = heapq.heappop(waiting)
            heapq.heappush(due, (_deadline(done, counts[stream], length, slack), stream, done))
        _, stream, done = heapq.heappop(due)
        pattern.append(stream)
        if done + 1 < counts[stream]:
            heapq.heappush(waiting, (_release(done + 1, counts[stream], length, slack), stream, done + 1))
    return pattern


def _release(done: int, count: int, length: int, slack: int) -> int:
    """The first n with w * n - done >= 1 / slack, for the share w = count / length."""
    return -(-(done * slack + 1) * length // (count * slack))


def _deadline(done: int, count: int, length: int, slack: int) -> int:
    """The last n with w * n - done <= 1 - 1 / slack."""
    return ((done + 1) * slack - 1) * length // (count * slack)
