from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardline.components.common.errors import DamagedData
from shardline.components.sharding.order import DataPolicy, Geometry, SampleOrder, permute

KEYS = np.arange(1, 9, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)


@given(st.integers(1, 5000))
def test_a_permutation_hits_every_number_once(size: int) -> None:
    out = permute(np.arange(size), size, KEYS)
    assert np.array_equal(np.sort(out), np.arange(size))


def test_a_permutation_looks_like_a_random_one() -> None:
    size = 100_000
    out = permute(np.arange(size), size, KEYS)
    assert abs(np.corrcoef(np.arange(size), out)[0, 1]) < 0.02
    # Neighbours part: of a random permutation about two in `size` stay side by side.
    assert np.count_nonzero(np.abs(np.diff(out)) == 1) < 12
    assert np.count_nonzero(out == permute(np.arange(size), size, KEYS + np.uint64(1))) < 12


@settings(max_examples=200)
@given(
    shards=st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(any),
    row_group=st.integers(1, 9),
    window=st.integers(1, 7),
    seed=st.integers(0, 2**63 - 1),
    epoch=st.integers(0, 3),
)
def test_each_epoch_holds_every_block_once(
    shards: list[int], row_group: int, window: int, seed: int, epoch: int
) -> None:
    order = SampleOrder(Geometry(shards, row_group=row_group), DataPolicy(seed=seed, window=window))
    count = sum(shards)
    blocks = order.blocks_of(np.arange(epoch * count, (epoch + 1) * count))
    assert np.array_equal(np.sort(blocks), np.arange(count))


@given(
    shards=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    wanted=st.lists(st.integers(0, 400), min_size=1, max_size=30),
)
def test_a_sample_is_the_same_block_whatever_is_asked_with_it(shards: list[int], wanted: list[int]) -> None:
    order = SampleOrder(Geometry(shards, row_group=4), DataPolicy(seed=3, window=2))
    together = order.blocks_of(np.array(wanted))
    alone = [int(order.blocks_of(np.array([sample]))[0]) for sample in wanted]
    assert together.tolist() == alone


@given(shards=st.lists(st.integers(0, 30), min_size=1, max_size=6).filter(any), row_group=st.integers(1, 8))
def test_every_block_is_found_in_its_row_group(shards: list[int], row_group: int) -> None:
    geometry = Geometry(shards, row_group=row_group)
    rows = [min(row_group, blocks - start) for blocks in shards for start in range(0, blocks, row_group)]
    expected = [(group, row) for group, count in enumerate(rows) for row in range(count)]
    group, row = geometry.locate(np.arange(sum(shards)))
    assert list(zip(group.tolist(), row.tolist(), strict=True)) == expected
    firsts = np.concatenate([[0], np.cumsum(rows)[:-1]]).tolist()
    assert [geometry.first_of(number) for number in range(len(rows))] == firsts


def test_a_window_reads_from_its_own_row_groups_only() -> None:
    geometry = Geometry([64, 64], row_group=4)
    order = SampleOrder(geometry, DataPolicy(seed=1, window=8))
    start = 0
    while start < 128:
        end = order.window_end(start)
        group, _ = geometry.locate(order.blocks_of(np.arange(start, end)))
        assert end - start == 32 and len(np.unique(group)) == 8
        start = end


def test_epochs_and_seeds_differ() -> None:
    geometry = Geometry([1000], row_group=8)
    orders = [SampleOrder(geometry, DataPolicy(seed=seed, window=4)) for seed in (1, 2)]
    first, second = (orders[0].blocks_of(np.arange(1000) + epoch * 1000) for epoch in (0, 1))
    other = orders[1].blocks_of(np.arange(1000))
    assert (first != second).mean() > 0.9 and (first != other).mean() > 0.9


def test_ten_billion_samples_cost_no_more_than_a_few() -> None:
    order = SampleOrder(Geometry([10**10 + 3], row_group=256), DataPolicy(seed=1, window=64))
    samples = np.concatenate([np.arange(64), np.arange(64) + 10**10 - 64, np.arange(64) + 5 * 10**10])
    blocks = order.blocks_of(samples)
    assert blocks.min() >= 0 and blocks.max() < 10**10 + 3 and len(np.unique(blocks[:128])) == 128


def test_a_policy_survives_json_and_an_unknown_version_is_refused() -> None:
    policy = DataPolicy(seed=2**63 - 1, window=7)
    assert DataPolicy.from_json(policy.to_json()) == policy
    with pytest.raises(DamagedData, match="version 2"):
        DataPolicy.from_json('{"seed": 1, "window": 2, "version": 2}')
    with pytest.raises(DamagedData):
        DataPolicy.from_json('{"seed": 1, "weights": []}')
