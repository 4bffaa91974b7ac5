"""As `memmap`, with one fancy index a batch: what numpy can do at best."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.data.contenders.memmap import CODECS, PACKAGES, write

__all__ = ["CODECS", "PACKAGES", "batches", "write"]


def batches(folder: Path, *, width: int, batch: int, seed: int) -> Iterator[np.ndarray]:
    data = np.memmap(folder / "tokens.bin", np.uint16, "r").reshape(-1, width)
    order = np.random.default_rng(seed).permutation(len(data))
    for start in range(0, len(order) - batch + 1, batch):
        yield data[order[start : start + batch]].astype(np.int64)
