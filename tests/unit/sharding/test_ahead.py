from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardline.components.common.config import RunConfig
from shardline.components.common.storage import Storage
from shardline.components.sharding.dataset import Dataset, RowGroup, Split
from shardline.components.sharding.loader import Loader
from shardline.components.sharding.making import shard
from shardline.components.sharding.order import policy_of


def test_the_next_stage_is_read_before_the_one_before_it_ends(
    tmp_path: Path,
    make_config: Callable[..., RunConfig],
    prose: Callable[[int, int], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sources = {}
    for first, name in ((0, "one"), (100, "two")):
        (tmp_path / name).mkdir()
        for number in range(30):
            (tmp_path / name / f"{number}.txt").write_text(prose(first + number, 100))
        sources[name] = {"urls": str(tmp_path / name)}
    steps = 24
    config = make_config(
        [],
        corpus__urls=None,
        corpus__sources=sources,
        training__mixture={"one": 1},
        training__stages=[{"at": steps, "mixture": {"two": 1}}],
    )
    split = Dataset.open(Storage(config.storage), shard(config).key).split("train")
    border = split.stream("one").blocks
    began = threading.Event()
    read_group = Split.read_group

    def reading(self: Split, group: int, **options: Any) -> RowGroup:
        if self.geometry.first_of(group) >= border:
            began.set()
        return read_group(self, group, **options)

    monkeypatch.setattr(Split, "read_group", reading)
    order = split.order(policy_of(config))
    with Loader(split, order=order, microbatch=2, dp_rank=0, dp_size=1, position=0) as loader:
        for _ in range(steps):
            samples = np.concatenate([batch.samples for batch in next(loader)])
            assert (samples < border).all()
        assert began.wait(30), "the next stage waits until it is asked for"
        assert all((batch.samples >= border).all() for batch in next(loader))
