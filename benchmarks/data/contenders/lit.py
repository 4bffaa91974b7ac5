"""LitData: token chunks with its TokensLoader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from litdata import StreamingDataset, TokensLoader, optimize

PACKAGES = ["litdata"]
CODECS = ["none"]


def write(blocks: np.ndarray, folder: Path, codec: str) -> None:
    optimize(
        _rows,
        inputs=[blocks.astype(np.int16)],
        output_dir=str(folder),
        chunk_bytes="64MB",
        num_workers=1,
        item_loader=TokensLoader(),
        verbose=False,
    )


def _rows(blocks: np.ndarray) -> Iterator[torch.Tensor]:
    for row in blocks:
        yield torch.from_numpy(row)


def batches(folder: Path, *, width: int, batch: int, seed: int) -> Iterator[np.ndarray]:
    data = StreamingDataset(str(folder), item_loader=TokensLoader(block_size=width), shuffle=True, seed=seed)
    rows = []
    for row in data:
        rows.append(row)
        if len(rows) == batch:
            yield torch.stack(rows).to(torch.int64).numpy()
            rows = []
