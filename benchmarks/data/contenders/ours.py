"""shardline: Parquet shards, every row group's hash checked, the order that training uses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from shardline.components.common.storage import Storage
from shardline.components.sharding.blocks import Blocks
from shardline.components.sharding.dataset import Dataset
from shardline.components.sharding.loader import Loader
from shardline.components.sharding.order import DataPolicy, Stage
from shardline.components.sharding.shardwriter import ShardWriter

PACKAGES = ["shardline", "pyarrow"]
CODECS = ["none", "lz4", "zstd:1", "zstd:3"]
_ROW_GROUP = 256


def write(blocks: np.ndarray, folder: Path, codec: str) -> None:
    """A shard of all blocks, with all its columns; each block is one document."""
    writer = ShardWriter(sequence=blocks.shape[1] - 1, dtype=blocks.dtype, codec=codec)
    for start in range(0, len(blocks), _ROW_GROUP):
        tokens = blocks[start : start + _ROW_GROUP]
        rows = len(tokens)
        zeros, counted = np.zeros(rows, np.int32), np.full(rows, tokens.shape[1], np.int32)
        writer.write(
            Blocks(
                numbers=np.arange(start, start + rows, dtype=np.int64),
                tokens=tokens,
                length=counted,
                bytes=counted,
                source=zeros,
                bounds=np.arange(rows + 1, dtype=np.int64),
                starts=zeros,
                quiet=zeros,
                weights=np.ones(rows, np.float32),
                files=zeros,
                offsets=np.zeros(rows, np.int64),
            )
        )
    _, _, file = writer.finish()
    with open(folder / "shard.parquet", "wb") as out:
        while data := file.read(1 << 22):
            out.write(data)
    writer.close()


def batches(folder: Path, *, width: int, batch: int, seed: int) -> Iterator[np.ndarray]:
    """Of the data set in `folder`, which the driver has made of text. Without end: epochs follow each other."""
    key = next((folder / "datasets").iterdir()).name
    split = Dataset.open(Storage(str(folder)), key).split("train")
    stage = Stage(step=0, global_batch=batch, sequence=width - 1, mixture=(("corpus", "1"),))
    order = split.order(DataPolicy(seed=seed, window=64, block=width - 1, stages=(stage,)))
    with Loader(split, order=order, microbatch=batch, dp_rank=0, dp_size=1, position=0) as loader:
        for (part,) in loader:
            yield part.tokens
