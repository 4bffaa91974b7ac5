"""Fixed units of corpus bytes: what is packed together. Pure: sizes in, intervals out.

The sorted files of a source, laid end to end, are cut at every multiple of the unit. Which bytes are in which unit
depends on the sizes alone, never on workers, cores or parts; so does everything that is made of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes [start, end) of the file with that number. The piece holds the records that start there."""

    file: int
    start: int
    end: int


class Units:
    """The units of files of these `sizes`, `unit` bytes each, the last one shorter."""

    def __init__(self, sizes: Sequence[int], unit: int) -> None:
        self._ends = np.cumsum(np.asarray(sizes, np.int64))
        self._unit = unit
        self.total = int(self._ends[-1]) if len(sizes) else 0

    def __len__(self) -> int:
        return -(-self.total // self._unit)

    def span(self, number: int) -> tuple[int, int]:
        """The corpus bytes [start, end) of a unit."""
        return number * self._unit, min((number + 1) * self._unit, self.total)

    def pieces(self, number: int) -> list[Piece]:
        """What the unit is made of, in order; files without bytes are in none."""
        start, end = self.span(number)
        file = int(np.searchsorted(self._ends, start, side="right"))
        pieces = []
        while start < end:
            file_end = int(self._ends[file])
            file_start = int(self._ends[file - 1]) if file else 0
            stop = min(end, file_end)
            if stop > start:
                pieces.append(Piece(file, start - file_start, stop - file_start))
            start, file = stop, file + 1
        return pieces


class SourceUnits:
    """The units of several sources, numbered through; `sizes` are those of each one's files."""

    def __init__(self, sizes: Sequence[Sequence[int]], unit: int) -> None:
        self._sources = [Units(each, unit) for each in sizes]
        self._first = np.cumsum([0, *map(len, self._sources)])
        self.total = sum(source.total for source in self._sources)

    def __len__(self) -> int:
        return int(self._first[-1])

    def source_of(self, number: int) -> int:
        return int(np.searchsorted(self._first, number, side="right")) - 1

    def length(self, number: int) -> int:
        """The corpus bytes of a unit."""
        source = self.source_of(number)
        start, end = self._sources[source].span(number - int(self._first[source]))
        return end - start

    def pieces(self, number: int) -> list[Piece]:
        """What a unit is made of; file numbers are within its source."""
        source = self.source_of(number)
        return self._sources[source].pieces(number - int(self._first[source]))
