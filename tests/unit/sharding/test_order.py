from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardline.components.common.errors import DamagedData
from shardline.components.sharding.order import DataPolicy, Geometry, SampleOrder, Skip, Stage
from shardline.components.sharding.order.mixture import LONGEST, Pattern, whole_numbers
from shardline.components.sharding.order.permutation import permute
from shardline.components.sharding.order.stream import StreamOrder

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
    order = StreamOrder(Geometry(shards, row_group=row_group), name="a", seed=seed, window=window)
    count = sum(shards)
    blocks = order.blocks_of(np.arange(epoch * count, (epoch + 1) * count))
    assert np.array_equal(np.sort(blocks), np.arange(count))


@given(
    shards=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    wanted=st.lists(st.integers(0, 400), min_size=1, max_size=30),
)
def test_a_sample_is_the_same_block_whatever_is_asked_with_it(shards: list[int], wanted: list[int]) -> None:
    order = StreamOrder(Geometry(shards, row_group=4), name="a", seed=3, window=2)
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
    order = StreamOrder(geometry, name="a", seed=1, window=8)
    start = 0
    while start < 128:
        end = order.window_end(start)
        group, _ = geometry.locate(order.blocks_of(np.arange(start, end)))
        assert end - start == 32 and len(np.unique(group)) == 8
        start = end


def test_epochs_and_seeds_differ() -> None:
    geometry = Geometry([1000], row_group=8)
    orders = [StreamOrder(geometry, name="a", seed=seed, window=4) for seed in (1, 2)]
    first, second = (orders[0].blocks_of(np.arange(1000) + epoch * 1000) for epoch in (0, 1))
    other = orders[1].blocks_of(np.arange(1000))
    assert (first != second).mean() > 0.9 and (first != other).mean() > 0.9


def test_ten_billion_samples_cost_no_more_than_a_few() -> None:
    order = StreamOrder(Geometry([10**10 + 3], row_group=256), name="a", seed=1, window=64)
    samples = np.concatenate([np.arange(64), np.arange(64) + 10**10 - 64, np.arange(64) + 5 * 10**10])
    blocks = order.blocks_of(samples)
    assert blocks.min() >= 0 and blocks.max() < 10**10 + 3 and len(np.unique(blocks[:128])) == 128


weights_of = st.lists(st.integers(1, 50), min_size=1, max_size=6)


@given(weights_of, st.integers(0, 5000))
def test_any_number_of_draws_keeps_the_proportions(weights: list[int], draws: int) -> None:
    pattern = Pattern([Fraction(weight) for weight in weights])
    streams, ordinals = pattern.split(np.arange(draws))
    for stream, weight in enumerate(weights):
        mine = np.flatnonzero(streams == stream)
        assert abs(Fraction(len(mine)) - Fraction(weight * draws, sum(weights))) < 1
        assert ordinals[mine].tolist() == list(range(len(mine)))
        assert pattern.drawn(stream, draws) == len(mine)
        assert pattern.join(stream, ordinals[mine]).tolist() == mine.tolist()


@given(st.lists(st.integers(1, 10**6).map(lambda n: Fraction(n, 10**6)), min_size=1, max_size=5))
@example([Fraction(1, 10**6)] * 3 + [Fraction(12_289, 62_500)])
def test_weights_become_whole_numbers_in_proportion(weights: list[Fraction]) -> None:
    counts = whole_numbers(weights)
    assert sum(counts) <= LONGEST + len(counts) and min(counts) >= 1
    for count, weight in zip(counts, weights, strict=True):
        # Each stream is drawn at least once: several that hardly count take that from the others.
        assert abs(Fraction(count, sum(counts)) - weight / sum(weights)) <= Fraction(len(counts), LONGEST)
    if sum(weight * 1000 == int(weight * 1000) for weight in weights) == len(weights):
        assert all(Fraction(c, counts[0]) == w / weights[0] for c, w in zip(counts, weights, strict=True))


STREAMS = {"a": Geometry([37, 20], row_group=4), "b": Geometry([11], row_group=4, first_blocks=[57])}


@st.composite
def policies(draw: st.DrawFn) -> DataPolicy:
    """A few stages and skips, over streams of blocks of 24 tokens."""
    steps = sorted(draw(st.sets(st.integers(1, 12), max_size=3)))
    stages = []
    for step in [0, *steps]:
        weights = draw(st.sampled_from([{"a": "1"}, {"a": "3", "b": "1"}, {"b": "0.7", "a": "0.3"}]))
        stages.append(
            Stage(
                step=step,
                global_batch=draw(st.sampled_from([2, 4, 6])),
                sequence=draw(st.sampled_from([24, 12, 8, 6, 4])),
                mixture=tuple(weights.items()),
            )
        )
    skips = tuple(
        Skip(step=step, batches=draw(st.integers(1, 4)))
        for step in sorted(draw(st.sets(st.integers(0, 14), max_size=3)))
    )
    return DataPolicy(seed=draw(st.integers(0, 9)), window=2, block=24, stages=tuple(stages), skips=skips)


@given(policies())
def test_no_token_is_lost_or_comes_twice_whatever_the_stages(policy: DataPolicy) -> None:
    order = SampleOrder(STREAMS, policy)
    given: dict[str, list[tuple[int, int]]] = {"a": [], "b": []}
    for stage in order.stages:
        last = stage.last if stage.last is not None else stage.stage.step + 4
        draws = np.arange(int(stage.draws_at(np.array([last - 1]))[0]) + stage.stage.global_batch)
        streams, ordinals = stage.split(draws)
        for number, name in enumerate(stage.names):
            places = stage.places(number, ordinals[streams == number])
            for block, offset, hidden in zip(places.blocks, places.offsets, places.hidden, strict=True):
                given[name] += [(int(block), place) for place in range(offset + hidden, offset + stage.stage.sequence)]
    for name, geometry in STREAMS.items():
        expected = StreamOrder(geometry, name=name, seed=policy.seed, window=policy.window)
        blocks = expected.blocks_of(np.arange(-(-len(given[name]) // 24)))
        tokens = [(int(block), place) for block in blocks for place in range(24)]
        assert given[name] == tokens[: len(given[name])]


@given(policies())
def test_positions_steps_and_samples_agree(policy: DataPolicy) -> None:
    order = SampleOrder(STREAMS, policy)
    seen: list[int] = []
    for step in range(16):
        assert order.step_at(order.position_at(step)) == step
        index, places = order.samples_of(step)
        assert len(index) == order.stage_at(step).stage.global_batch
        seen += index.tolist()
        for at, number in enumerate(index.tolist()):
            found, place = order.find(number)
            assert found == step
            assert (place.blocks[0], place.offsets[0], place.hidden[0]) == (
                places.blocks[at],
                places.offsets[at],
                places.hidden[at],
            )
    assert seen == sorted(set(seen))
    for number in set(range(seen[-1])) - set(seen):
        assert order.find(number)[0] == -1
    skipped = sum(
        skip.batches * order.stage_at(skip.step).stage.global_batch for skip in policy.skips if skip.step <= 15
    )
    assert len(set(range(seen[-1] + 1)) - set(seen)) == skipped


@given(policies(), policies(), st.integers(0, 14))
def test_what_is_to_come_does_not_change_what_was(policy: DataPolicy, other: DataPolicy, step: int) -> None:
    later = tuple(stage for stage in other.stages if stage.step >= max(1, step))
    changed = replace(policy.before(max(1, step)), stages=policy.before(max(1, step)).stages + later)
    assert changed.before(step) == policy.before(step)
    one, two = SampleOrder(STREAMS, policy), SampleOrder(STREAMS, changed)
    assert one.position_at(step) == two.position_at(step)
    for done in range(step):
        before, after = one.samples_of(done), two.samples_of(done)
        assert before[0].tolist() == after[0].tolist() and before[1].blocks.tolist() == after[1].blocks.tolist()


def test_a_position_inside_a_step_is_refused() -> None:
    stage = Stage(step=0, global_batch=4, sequence=24, mixture=(("a", "1"),))
    order = SampleOrder(STREAMS, DataPolicy(seed=0, window=2, block=24, stages=(stage,)))
    assert order.step_at(3 * 96) == 3
    with pytest.raises(DamagedData, match="position 300"):
        order.step_at(300)


def test_a_policy_survives_json_and_an_unknown_version_is_refused() -> None:
    stages = (Stage(step=0, global_batch=4, sequence=24, mixture=(("a", "0.1"), ("b+c", "3"))),)
    policy = DataPolicy(seed=2**63 - 1, window=7, block=24, stages=stages, skips=(Skip(step=3, batches=2),))
    assert DataPolicy.from_json(policy.to_json()) == policy
    with pytest.raises(DamagedData, match="version 3"):
        DataPolicy.from_json('{"seed": 1, "window": 2, "version": 3}')
    for text in ('{"seed": 1, "weights": []}', '{"version": 2, "seed": 1}', "[]", "nonsense"):
        with pytest.raises(DamagedData, match="not a data policy"):
            DataPolicy.from_json(text)
