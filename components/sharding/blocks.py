"""Blocks in memory, as columns. Made by packing, written to shards, read back, cut into batches. Pure numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
#: Token ids, as uint16 or uint32.
Tokens = npt.NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True, eq=False, kw_only=True)
class Samples:
    """n blocks of `sequence` + 1 tokens: what a batch is made of.

    Attributes:
        numbers: int64[n], each block's number within its split.
        tokens: [n, sequence + 1]; the last token of a block is the first of the next one in its unit.
        length: int32[n], how many of the tokens are true; the rest is padding.
        bytes: int32[n], UTF-8 bytes of the text that the tokens to train on stand for.
        bounds: int64[n + 1]; block i has the document starts bounds[i] to bounds[i + 1].
        starts: int32[k], the offset in its block at which a document begins (its end-of-text token); the first of
            each block is 0, also where the document began in an earlier one.
        quiet: int32[k], how many of the tokens after that are none to train on: a prompt, or the rest of one.
        weights: float32[k], what each of the document's tokens counts in the loss.
    """

    numbers: I64
    tokens: Tokens
    length: I32
    bytes: I32
    bounds: I64
    starts: I32
    quiet: I32
    weights: F32

    def __len__(self) -> int:
        return len(self.numbers)


@dataclass(frozen=True, eq=False, kw_only=True)
class Blocks(Samples):
    """Blocks with where they come from.

    Attributes:
        source: int32[n], the corpus source.
        files: int32[k], for each document start the document's file.
        offsets: int64[k], its byte offset (in Parquet: its row number) in the file.
    """

    source: I32
    files: I32
    offsets: I64

    def take(self, rows: npt.ArrayLike) -> Blocks:
        """The blocks at `rows`, in that order."""
        rows = np.asarray(rows, np.int64)
        counts = np.diff(self.bounds)[rows]
        bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        entries = np.repeat(self.bounds[rows] - bounds[:-1], counts) + np.arange(bounds[-1])
        return Blocks(
            numbers=self.numbers[rows],
            tokens=self.tokens[rows],
            length=self.length[rows],
            bytes=self.bytes[rows],
            source=self.source[rows],
            bounds=bounds,
            starts=self.starts[entries],
            quiet=self.quiet[entries],
            weights=self.weights[entries],
            files=self.files[entries],
            offsets=self.offsets[entries],
        )


Kind = TypeVar("Kind", bound=Samples)


def concatenate(parts: Sequence[Kind]) -> Kind:
    """The blocks of all parts, one after the other; there must be at least one part."""
    first = parts[0]
    if len(parts) == 1:
        return first
    counts = np.concatenate([np.diff(part.bounds) for part in parts])
    names = [each.name for each in fields(first) if each.name != "bounds"]
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return replace(first, bounds=np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]), **columns)


def distinct(values: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.integer[Any]]:
    """The values, rising, each once.

    `np.unique` imports numpy's masked arrays when it is first called: longer than the first batch takes.
    """
    ordered = np.sort(values)
    first = np.ones(len(ordered), bool)
    first[1:] = ordered[1:] != ordered[:-1]
    found: npt.NDArray[np.integer[Any]] = ordered[first]
    return found
