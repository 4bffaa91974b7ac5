"""What the tests of the node cache share: its processes, its entries, and what is fetched."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from shardline.components.sharding.cache import NodeCache
from tests.unit.sharding.cache_process import columns_of, is_right, key_of

PROGRAM = Path(__file__).with_name("cache_process.py")


def start(*arguments: Any) -> subprocess.Popen[str]:
    command = [sys.executable, str(PROGRAM), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def result_of(process: subprocess.Popen[str]) -> Any:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return json.loads(out)


def entries(folder: Path) -> list[Path]:
    return sorted((folder / "blocks-1" / "entries").iterdir())


def never() -> dict[str, Any]:
    raise AssertionError("this is in the cache")


def get(cache: NodeCache, number: int) -> None:
    assert is_right(number, cache.get(key_of(number), lambda: columns_of(number)))
