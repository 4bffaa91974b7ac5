"""What the tests of the node cache run in processes of their own: `python cache_process.py WHAT ARGUMENTS`.

Prints one line of JSON at the end.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import random
import resource
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from shardline.components.common.config.schema import Cache
from shardline.components.common.storage import Storage
from shardline.components.sharding.blocks import Blocks
from shardline.components.sharding.cache import NodeCache
from shardline.components.sharding.cache_files import Columns
from shardline.components.sharding.dataset import Dataset


def key_of(number: int) -> str:
    return hashlib.blake2b(str(number).encode(), digest_size=16).hexdigest()


def columns_of(number: int, *, size: int = 20_000) -> dict[str, np.ndarray[Any, Any]]:
    """What is right for that number: two arrays of `size` bytes in all, or some more."""
    draw = np.random.default_rng(number)
    tokens = draw.integers(0, 1 << 16, (5, size // 10), dtype=np.uint16)
    return {"tokens": tokens, "length": np.arange(number, number + 7, dtype=np.int32)}


def is_right(number: int, columns: Columns, *, size: int = 20_000) -> bool:
    right = columns_of(number, size=size)
    return list(right) == list(columns) and all(
        columns[name].dtype == array.dtype and np.array_equal(columns[name], array) for name, array in right.items()
    )


def digest_of(blocks: Blocks) -> str:
    whole = hashlib.blake2b(digest_size=16)
    for field in dataclasses.fields(blocks):
        array = getattr(blocks, field.name)
        whole.update(f"{field.name} {array.dtype} {array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return whole.hexdigest()


def read(url: str, key: str, folder: str, seed: str) -> dict[str, Any]:
    """Every row group of the training split, by two threads, in an order of its own."""
    dataset = Dataset.open(Storage(url), key, cache=Cache(folder=folder, size=1 << 30))
    split = dataset.split("train")
    order = random.Random(int(seed)).sample(range(split.groups), split.groups)
    with ThreadPoolExecutor(2) as threads:
        digests = list(threads.map(lambda group: digest_of(split.read_group(group).blocks()), order))
    assert dataset.cache is not None
    found = dict(zip(order, digests, strict=True))
    return {
        "digests": [found[group] for group in range(split.groups)],
        "statistics": dataclasses.asdict(dataset.cache.statistics()),
    }


def churn(folder: str, size: str, count: str, keys: str, seed: str) -> dict[str, Any]:
    """Get `count` entries of `keys` different ones at random; each has to be right."""
    cache = NodeCache(Path(folder), size=int(size))
    draw = random.Random(int(seed))
    for _ in range(int(count)):
        number = draw.randrange(int(keys))
        assert is_right(number, cache.get(key_of(number), lambda number=number: columns_of(number))), number
    return dataclasses.asdict(cache.statistics())


def killed(folder: str, size: str, kills: str, seed: str) -> dict[str, Any]:
    """Churn here while processes that do the same are killed, one after the other, at moments of chance."""
    draw = random.Random(int(seed))
    cache = NodeCache(Path(folder), size=int(size))
    for turn in range(int(kills)):
        child = os.fork()
        if child == 0:
            try:
                churn(folder, size, "1000000", "60", f"{seed}{turn}")
            finally:
                os._exit(1)
        end = time.monotonic() + draw.uniform(0.002, 0.04)
        while time.monotonic() < end:
            number = draw.randrange(60)
            assert is_right(number, cache.get(key_of(number), lambda number=number: columns_of(number))), number
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    return dataclasses.asdict(cache.statistics())


def die(folder: str, *places: str) -> list[dict[str, Any]]:
    """For each place a process that puts entry 0 there, and that the kernel ends at that byte of the file.

    Says how each ended and what it left.
    """
    left = []
    for at in places:
        child = os.fork()
        if child == 0:
            try:
                signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                limited(folder, at)
            finally:
                os._exit(0)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        files = {path.name: path.stat().st_size for path in Path(folder).glob("*/entries/*")}
        left.append({"ended": ended, "files": files})
    return left


def limited(folder: str, at: str) -> dict[str, Any]:
    """Get two entries twice, with no file longer than `at` bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(at), int(at)))
    cache = NodeCache(Path(folder), size=1 << 30)
    for number in (0, 1, 0, 1):
        assert is_right(number, cache.get(key_of(number), lambda number=number: columns_of(number)))
    return dataclasses.asdict(cache.statistics())


if __name__ == "__main__":
    what: Any = {"read": read, "churn": churn, "killed": killed, "die": die, "limited": limited}[sys.argv[1]]
    print(json.dumps(what(*sys.argv[2:])))
