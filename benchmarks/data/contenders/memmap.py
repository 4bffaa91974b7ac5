"""A flat file of uint16, mapped: the reader of nanoGPT (a row at a time, then a stack), and one fancy index a batch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

PACKAGES = ["numpy"]
CODECS = ["none"]


def write(blocks: np.ndarray, folder: Path, codec: str) -> None:
    blocks.tofile(folder / "tokens.bin")


def batches(folder: Path, *, width: int, batch: int, seed: int) -> Iterator[np.ndarray]:
    data = np.memmap(folder / "tokens.bin", np.uint16, "r")
    order = np.random.default_rng(seed).permutation(len(data) // width)
    for start in range(0, len(order) - batch + 1, batch):
        rows = order[start : start + batch].tolist()
        yield np.stack([data[row * width : (row + 1) * width].astype(np.int64) for row in rows])
