"""What opening a large data set costs: `python -m benchmarks.data.terabyte [--groups 500000]`.

Writes the manifest and the index of a data set of that many row groups (1 TB of tokens for 500,000), without its
shards, opens it as training does, and prints, as JSON, the seconds and the memory up to where the first batch's blocks
are known.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace

import numpy as np

from benchmarks.data.measure import peak, resident
from shardline.components.common.storage import Storage
from shardline.components.sharding import manifest as names
from shardline.components.sharding.dataset import Dataset
from shardline.components.sharding.manifest import FileFacts, Manifest, Skips, SplitFacts
from shardline.components.sharding.order import DataPolicy, Stage
from shardline.components.sharding.shardfile import GROUP, Shard, hash_of

_GROUPS_IN_A_SHARD, _ROW_GROUP, _SEQUENCE = 64, 256, 4096


def write(storage: Storage, groups: int) -> str:
    """A data set without shards; returns its key."""
    index = np.zeros(groups, GROUP)
    index["shard"] = np.arange(groups) // _GROUPS_IN_A_SHARD
    index["rows"] = _ROW_GROUP
    shards = tuple(
        Shard(
            hash=f"{number:032x}",
            source=0,
            codec="zstd:3",
            size=1 << 26,
            blocks=int(count) * _ROW_GROUP,
            groups=int(count),
            footer=1 << 26,
            footer_hash="0" * 32,
        )
        for number, count in enumerate(np.bincount(index["shard"]))
    )
    nothing = FileFacts(hash=hash_of(b"").hex(), size=0, count=0)
    manifest = Manifest(
        key="0" * 32,
        base=None,
        sources=("corpus",),
        fingerprint="0" * 32,
        sequence=_SEQUENCE,
        dtype="uint16",
        vocab=1 << 16,
        end_of_text="",
        end_of_text_id=0,
        row_group=_ROW_GROUP,
        train=SplitFacts(blocks=groups * _ROW_GROUP, shards=shards),
        held_out=SplitFacts(),
        skipped=Skips(),
        near_duplicates=Skips(),
        tokenizer=nothing,
        prints=nothing,
        index=nothing,
        files=nothing,
    )
    data = index.tobytes()
    manifest = replace(manifest, index=FileFacts(hash=hash_of(data).hex(), size=len(data), count=groups))
    storage.write(f"{names.folder(manifest.key)}/{names.INDEX}", data)
    storage.write(f"{names.folder(manifest.key)}/{names.MANIFEST}", manifest.to_json())
    return manifest.key


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=500_000)
    groups = parser.parse_args().groups
    with tempfile.TemporaryDirectory() as folder:
        storage = Storage(folder)
        key = write(storage, groups)
        before, began = resident(), time.perf_counter()
        split = Dataset.open(storage, key).split("train")
        stage = Stage(step=0, global_batch=512, sequence=_SEQUENCE, mixture=(("corpus", "1"),))
        order = split.order(DataPolicy(seed=1, window=64, block=_SEQUENCE, stages=(stage,)))
        _, places = order.samples_of(0)
        split.geometry.locate(places.blocks)
        seconds = time.perf_counter() - began
    tokens = groups * _ROW_GROUP * _SEQUENCE
    print(json.dumps({"groups": groups, "tokens": tokens, "seconds": seconds, "memory_mb": (peak() - before) / 1e6}))


if __name__ == "__main__":
    main()
