"""WebDataset: tar files, a raw entry a row, shuffled in a buffer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import webdataset

PACKAGES = ["webdataset"]
CODECS = ["none"]
_SHARD = 2048


def write(blocks: np.ndarray, folder: Path, codec: str) -> None:
    with webdataset.ShardWriter(f"{folder}/%06d.tar", maxcount=_SHARD, verbose=0) as out:
        for number, row in enumerate(blocks):
            out.write({"__key__": f"{number:09d}", "bin": row.tobytes()})


def batches(folder: Path, *, width: int, batch: int, seed: int) -> Iterator[np.ndarray]:
    files = sorted(str(path) for path in folder.glob("*.tar"))
    data = webdataset.WebDataset(files, shardshuffle=len(files), seed=seed).shuffle(4096)
    rows: list[np.ndarray] = []
    for sample in data:
        rows.append(np.frombuffer(sample["bin"], np.uint16).astype(np.int64))
        if len(rows) == batch:
            yield np.stack(rows)
            rows = []
