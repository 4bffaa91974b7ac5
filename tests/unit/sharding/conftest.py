"""A small corpus of invented text, and run configs for it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import settings

from shardline.components.common.config import RunConfig, parse
from shardline.components.common.storage import Storage
from shardline.components.sharding.cache import NodeCache
from shardline.components.sharding.dataset import Dataset
from shardline.components.sharding.making import Progress, shard

# How long an example takes says more about the machine than about the code.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

MakeConfig = Callable[..., RunConfig]


def invented(seed: int, words: int) -> str:
    """Invented words in lines; the same for the same seed."""
    draw = random.Random(seed)
    syllables = ["ka", "to", "mi", "ren", "sol", "é", "λ", "ba", "xu", "ny"]
    lines = []
    while words > 0:
        count = min(words, draw.randrange(3, 12))
        lines.append(" ".join("".join(draw.choices(syllables, k=draw.randrange(1, 4))) for _ in range(count)))
        words -= count
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="session")
def prose() -> Callable[[int, int], str]:
    return invented


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Sixty text files of different lengths, some in folders."""
    folder = tmp_path / "corpus"
    for number in range(60):
        path = folder / f"part{number % 3}" / f"{number:03d}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(invented(number, 20 + number * 7 % 300), encoding="utf-8", newline="")
    return folder


@pytest.fixture
def make_config(tmp_path: Path) -> MakeConfig:
    def make(urls: Any, *, root: str = "root", **changes: Any) -> RunConfig:
        """A config for `urls`; `sharding__codec="none"` sets `sharding.codec`."""
        tree: dict[str, Any] = {
            "version": 1,
            "run": "test",
            "storage": root if "://" in root else str(tmp_path / root),
            "corpus": {"urls": [str(url) for url in ([urls] if isinstance(urls, str | Path) else urls)]},
            "tokenizer": {"vocab": 300},
            "sharding": {"unit": 8192, "row_group": 4, "held_out": 0.15, "workers": 1},
            "training": {"steps": 1, "global_batch": 8, "microbatch": 2, "sequence": 32},
        }
        for key, value in changes.items():
            section, _, name = key.partition("__")
            tree.setdefault(section, {})[name] = value
        return parse(yaml.safe_dump(tree), source="test").config

    return make


@pytest.fixture
def dataset(corpus: Path, make_config: MakeConfig) -> Dataset:
    config = make_config(corpus)
    return Dataset.open(Storage(config.storage), shard(config).key)


@pytest.fixture
def shard_until() -> Callable[[RunConfig, str, int], None]:
    """Makes a data set up to where `done` units of a phase are done, and leaves it there."""

    class Enough(Exception):
        pass

    def run(config: RunConfig, phase: str, done: int) -> None:
        def stop(progress: Progress) -> None:
            if (progress.phase, progress.done) == (phase, done):
                raise Enough

        with pytest.raises(Enough):
            shard(config, on_progress=stop)

    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def cache(folder: Path) -> NodeCache:
    return NodeCache(folder, size=1 << 30)
