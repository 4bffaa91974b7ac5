"""Hugging Face datasets: a map-style Arrow data set, shuffled by indices, numpy format."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from datasets import Dataset, load_from_disk

PACKAGES = ["datasets"]
CODECS = ["none"]


def write(blocks: np.ndarray, folder: Path, codec: str) -> None:
    column = pa.FixedSizeListArray.from_arrays(pa.array(blocks.ravel()), blocks.shape[1])
    Dataset(pa.table({"tokens": column})).save_to_disk(str(folder))


def batches(folder: Path, *, width: int, batch: int, seed: int) -> Iterator[np.ndarray]:
    data = load_from_disk(str(folder)).with_format("numpy")
    order = np.random.default_rng(seed).permutation(len(data))
    for start in range(0, len(order) - batch + 1, batch):
        yield data[order[start : start + batch]]["tokens"].astype(np.int64)
