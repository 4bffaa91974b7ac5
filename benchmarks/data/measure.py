"""One measurement in its own process: `python -m benchmarks.data.measure write|read CONTENDER FOLDER TOKENS [CODEC]`.

Prints one line of JSON. Memory is what the process grew by after its imports, at its peak. Times are wall time.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np

BATCH = 8
#: A fast reader goes round several times: at least this long.
SECONDS = 4.0


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak() -> int:
    """The most bytes of this process in memory so far. Not `ru_maxrss`: a process begins with its parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024


def measure_write(contender: object, folder: Path, tokens: Path, codec: str) -> dict[str, object]:
    blocks = np.load(tokens)
    before = resident()
    began = time.perf_counter()
    contender.write(blocks, folder, codec)  # type: ignore[attr-defined]
    seconds = time.perf_counter() - began
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return {
        "mb_s": blocks.nbytes / 1e6 / seconds,
        "ratio": size / blocks.nbytes,
        "memory_mb": (peak() - before) / 1e6,
    }


def measure_read(contender: object, folder: Path, tokens: Path) -> dict[str, object]:
    width = np.load(tokens, mmap_mode="r").shape[1]
    before = resident()
    began = time.perf_counter()
    count = epoch = 0
    first = 0.0
    while time.perf_counter() - began < SECONDS:
        for batch in contender.batches(folder, width=width, batch=BATCH, seed=epoch):  # type: ignore[attr-defined]
            if not count:
                first = time.perf_counter() - began
            # Ours hands out inputs and targets, each a token shorter than the row that both are views of.
            if batch.shape not in ((BATCH, width), (BATCH, width - 1)) or batch.dtype != np.int64:
                raise SystemExit(f"a batch of {batch.shape}, {batch.dtype}")
            count += batch.size
            if time.perf_counter() - began >= SECONDS:
                break
        epoch += 1
    seconds = time.perf_counter() - began
    return {"mtokens_s": count / 1e6 / seconds, "first_ms": first * 1e3, "memory_mb": (peak() - before) / 1e6}


def main(action: str, name: str, folder: str, tokens: str, codec: str = "none") -> None:
    contender = importlib.import_module(f"benchmarks.data.contenders.{name}")
    where = Path(folder)
    if action == "write":
        found = measure_write(contender, where, Path(tokens), codec)
    else:
        found = measure_read(contender, where, Path(tokens))
    versions = {package: version(package) for package in contender.PACKAGES}
    print(json.dumps({"contender": name, "codec": codec, "versions": versions, **found}))


if __name__ == "__main__":
    main(*sys.argv[1:])
