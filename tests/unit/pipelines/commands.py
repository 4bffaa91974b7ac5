"""Runs the command line as a user does: as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

COMMAND = [sys.executable, "-m", "shardline.pipelines.cli.main"]

SMALL = """\
version: 1
run: small
storage: ./data
corpus: "stdlib:asyncio"
tokenizer: {vocab: 512}
sharding: {unit: 256KiB, row_group: 16, held_out: 0.1, workers: 2}
training: {steps: 4, global_batch: 4, microbatch: 2, sequence: 64, schedule: {warmup: 1}}
resources: {processes: 1}
"""


def environment(**extra: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SHARDLINE_")}
    return {**kept, "OMP_NUM_THREADS": "1", **extra}


def shardline(*arguments: str, cwd: Path, **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], cwd=cwd, env=environment(**extra), capture_output=True, text=True, timeout=240
    )


def write(folder: Path, text: str = SMALL, name: str = "config.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path
