"""Whatever takes the samples gets the same ones."""

from __future__ import annotations

import numpy as np
import pytest
from torch.utils.data import DataLoader

from shardline.components.common.errors import UserError
from shardline.components.sharding.adapters import COLUMNS, RankSamples, tensorflow_dataset, torch_dataset
from shardline.components.sharding.dataset import Dataset
from shardline.components.sharding.order import DataPolicy, Stage


@pytest.fixture
def samples(dataset: Dataset) -> RankSamples:
    split = dataset.split("train")
    stages = [Stage(step=at, global_batch=6, sequence=n, mixture=(("corpus", "1"),)) for at, n in ((0, 32), (3, 16))]
    order = split.order(DataPolicy(seed=5, window=3, block=32, stages=tuple(stages)))
    return RankSamples(
        split=split, order=order, microbatch=2, dp_rank=1, dp_size=2, position=order.position_at(1), steps=5
    )


def test_torch_gets_the_samples_of_the_loader(samples: RankSamples) -> None:
    expected = list(samples)
    assert len(expected) == 5 * 2 and expected[0]["tokens"].shape == (2, 32) and expected[-1]["tokens"].shape == (2, 16)
    found = list(DataLoader(torch_dataset(samples), batch_size=None))
    for one, two in zip(found, expected, strict=True):
        assert all(np.array_equal(one[name].numpy(), two[name]) for name in COLUMNS)


def test_worker_processes_are_refused(samples: RankSamples) -> None:
    with pytest.raises(UserError, match="set num_workers to 0"):
        list(DataLoader(torch_dataset(samples), batch_size=None, num_workers=1, multiprocessing_context="fork"))


def test_tensorflow_gets_the_samples_of_the_loader(samples: RankSamples) -> None:
    pytest.importorskip("tensorflow", reason="tensorflow is not installed: pip install 'shardline[tensorflow]'")
    for one, two in zip(tensorflow_dataset(samples), samples, strict=True):
        assert all(np.array_equal(one[name].numpy(), two[name]) for name in COLUMNS)
