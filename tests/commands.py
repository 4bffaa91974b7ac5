"""Runs the command line as a user does: as a process of its own, to its end or in the background."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from shardline.components.common.storage import Storage
from shardline.components.common.streams import read_all

MARK = "SHARDLINE_TEST_MARK"
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


def marked(mark: str) -> list[int]:
    """The living processes that were started, at any depth, with `mark` in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue  # it ended meanwhile, or is somebody else's
    return found


def eventually(condition: Callable[[], bool], *, seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.02)


class Started:
    """A `shardline run` in the background."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.mark = uuid.uuid4().hex
        self.run = Storage(str(folder / "data" / "runs" / "small"))
        self.process = subprocess.Popen(
            [*COMMAND, "run", "config.yaml", *options],
            cwd=folder,
            env={**environment(), MARK: self.mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def names(self) -> list[str]:
        return [record["name"] for record in read_all(self.run.at("events"))]

    def wait_for(self, name: str, *, step: str | int) -> None:
        def there() -> bool:
            assert self.process.poll() is None, self.process.communicate()
            records = read_all(self.run.at("events"))
            return any(record["name"] == name and record["data"].get("step") == step for record in records)

        eventually(there)

    def all_gone(self) -> bool:
        return not marked(self.mark)
