from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardline.components.common.errors import DamagedData
from shardline.components.sharding.batch import Batch
from shardline.components.sharding.dataset import Dataset
from shardline.components.sharding.loader import Loader, held_out_batches
from shardline.components.sharding.order import DataPolicy, SampleOrder

Steps = list[list[Batch]]
COLUMNS = ("tokens", "targets", "positions", "documents", "loss_mask", "samples", "index", "bytes")
same_data_set = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


def order_of(dataset: Dataset, *, window: int = 3) -> SampleOrder:
    return SampleOrder(dataset.split("train").geometry, DataPolicy(seed=5, window=window))


def steps_of(
    dataset: Dataset,
    *,
    count: int,
    dp_rank: int = 0,
    dp_size: int = 1,
    position: int = 0,
    batch: int = 12,
    micro: int = 2,
) -> Steps:
    loader = Loader(
        dataset.split("train"),
        order=order_of(dataset),
        global_batch=batch,
        microbatch=micro,
        dp_rank=dp_rank,
        dp_size=dp_size,
        position=position,
    )
    with loader:
        steps = [step for step, _ in zip(loader, range(count), strict=False)]
    return steps[:count]


def put_together(ranks: list[Steps], *, microbatches: int) -> Steps:
    """The microbatches of each step in their global order; the absent ones must come last and be masked."""
    steps = []
    for parts in zip(*ranks, strict=True):
        assert len({len(part) for part in parts}) == 1
        batches = [part[round_] for round_ in range(len(parts[0])) for part in parts]
        for batch in batches[microbatches:]:
            assert not batch.loss_mask.any() and (batch.samples == -1).all() and (batch.index == -1).all()
        steps.append(batches[:microbatches])
    return steps


def assert_same(left: Steps, right: Steps) -> None:
    assert len(left) == len(right)
    for one, two in zip(left, right, strict=True):
        assert len(one) == len(two)
        for a, b in zip(one, two, strict=True):
            for column in COLUMNS:
                assert np.array_equal(getattr(a, column), getattr(b, column)), column


@pytest.mark.parametrize("dp_size", range(2, 8))
def test_any_number_of_ranks_gives_the_same_global_batches(dataset: Dataset, dp_size: int) -> None:
    alone = steps_of(dataset, count=9)
    ranks = [steps_of(dataset, count=9, dp_rank=rank, dp_size=dp_size) for rank in range(dp_size)]
    assert_same(put_together(ranks, microbatches=6), alone)


def test_each_epoch_gives_every_block_once_across_global_batches(dataset: Dataset) -> None:
    blocks = dataset.split("train").blocks
    assert blocks % 12
    seen = np.concatenate([batch.samples for step in steps_of(dataset, count=3 * blocks // 12 + 1) for batch in step])
    index = np.concatenate([batch.index for step in steps_of(dataset, count=4) for batch in step])
    assert index.tolist() == list(range(48))
    for epoch in range(3):
        assert sorted(seen[epoch * blocks : (epoch + 1) * blocks].tolist()) == list(range(blocks))
    assert np.array_equal(seen, order_of(dataset).blocks_of(np.arange(len(seen))))


@same_data_set
@given(step=st.integers(0, 60), dp_size=st.integers(1, 4), micro=st.sampled_from([1, 2, 3, 4, 6, 12]))
def test_it_goes_on_from_any_position_under_any_number_of_ranks(
    dataset: Dataset, step: int, dp_size: int, micro: int
) -> None:
    whole = steps_of(dataset, count=step + 3, micro=micro)[step:]
    ranks = [
        steps_of(dataset, count=3, dp_rank=rank, dp_size=dp_size, position=step * 12, micro=micro)
        for rank in range(dp_size)
    ]
    assert_same(put_together(ranks, microbatches=12 // micro), whole)


def test_the_position_counts_what_was_given_out(dataset: Dataset) -> None:
    arguments = {"global_batch": 12, "microbatch": 2, "dp_rank": 0, "dp_size": 1, "position": 36}
    with Loader(dataset.split("train"), order=order_of(dataset), **arguments) as loader:  # type: ignore[arg-type]
        next(loader)
        assert loader.position == 48


def test_a_batch_agrees_with_its_blocks(dataset: Dataset) -> None:
    split = dataset.split("train")
    for batch in (batch for step in steps_of(dataset, count=12) for batch in step):
        for row, number in enumerate(batch.samples.tolist()):
            group, at = (int(each[0]) for each in split.geometry.locate(np.array([number])))
            blocks = split.read_group(group)
            tokens, length = blocks.tokens[at].astype(np.int64), int(blocks.length[at])
            assert batch.tokens[row].tolist() == tokens[:-1].tolist()
            assert batch.targets[row].tolist() == tokens[1:].tolist()
            assert batch.loss_mask[row].tolist() == [place < length - 1 for place in range(split.sequence)]
            starts = blocks.starts[blocks.bounds[at] : blocks.bounds[at + 1]].tolist()
            last = [max(start for start in starts if start <= place) for place in range(split.sequence)]
            assert batch.positions[row].tolist() == [place - start for place, start in enumerate(last)]
            assert batch.documents[row].tolist() == [starts.index(start) for start in last]
            assert batch.bytes[row] == blocks.bytes[at]


@pytest.mark.parametrize("dp_size", [1, 2, 3, 50])
def test_held_out_blocks_come_once_each_over_all_ranks(dataset: Dataset, dp_size: int) -> None:
    split = dataset.split("held_out")
    ranks = [list(held_out_batches(split, microbatch=4, dp_rank=rank, dp_size=dp_size)) for rank in range(dp_size)]
    assert len({len(rank) for rank in ranks}) == 1
    samples = np.concatenate([batch.samples for rank in ranks for batch in rank])
    assert sorted(samples[samples >= 0].tolist()) == list(range(split.blocks))
    assert sum(int(batch.bytes.sum()) for rank in ranks for batch in rank) == split.facts.bytes
    assert sum(int(batch.loss_mask.sum()) for rank in ranks for batch in rank) == split.facts.tokens
    for batch in (batch for rank in ranks for batch in rank):
        assert not batch.loss_mask[batch.samples == -1].any() and batch.tokens.shape == (4, split.sequence)


def test_damage_met_by_a_thread_reaches_who_iterates_and_threads_end(dataset: Dataset) -> None:
    shard = dataset.split("train").facts.shards[-1]
    path = dataset.storage.local_path(f"shards/{shard.hash}.parquet")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamagedData, match=shard.hash):
        steps_of(dataset, count=dataset.split("train").blocks // 12)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("loader")]


def test_a_microbatch_that_does_not_divide_the_batch_is_a_bug(dataset: Dataset) -> None:
    with pytest.raises(ValueError, match="microbatch 5"):
        steps_of(dataset, count=1, micro=5)
