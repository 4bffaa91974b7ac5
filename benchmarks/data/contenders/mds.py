"""MosaicML Streaming: MDS shards, one bytes column, its own shuffle."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from streaming import MDSWriter, StreamingDataset
from streaming.base.util import clean_stale_shared_memory

PACKAGES = ["mosaicml-streaming"]
CODECS = ["none", "zstd:1", "zstd:3"]


def write(blocks: np.ndarray, folder: Path, codec: str) -> None:
    compression = None if codec == "none" else codec
    with MDSWriter(out=str(folder), columns={"tokens": "bytes"}, compression=compression, exist_ok=True) as out:
        for row in blocks:
            out.write({"tokens": row.tobytes()})


def batches(folder: Path, *, width: int, batch: int, seed: int) -> Iterator[np.ndarray]:
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29511")
    clean_stale_shared_memory()
    data = StreamingDataset(local=str(folder), shuffle=True, shuffle_seed=seed, batch_size=batch)
    rows: list[np.ndarray] = []
    for sample in data:
        rows.append(np.frombuffer(sample["tokens"], np.uint16).astype(np.int64))
        if len(rows) == batch:
            yield np.stack(rows)
            rows = []
