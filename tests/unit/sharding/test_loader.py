from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardline.components.common.errors import DamagedData
from shardline.components.sharding.batch import Batch
from shardline.components.sharding.dataset import Dataset
from shardline.components.sharding.loader import Loader, held_out_batches
from shardline.components.sharding.order import DataPolicy, Skip, Stage

Steps = list[list[Batch]]
COLUMNS = ("tokens", "targets", "positions", "documents", "loss_mask", "loss_weights", "samples", "index", "bytes")
same_data_set = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


def policy(
    *, batch: int = 12, sequence: int = 32, stages: tuple[Stage, ...] = (), skips: tuple[Skip, ...] = ()
) -> DataPolicy:
    first = Stage(step=0, global_batch=batch, sequence=sequence, mixture=(("corpus", "1"),))
    return DataPolicy(seed=5, window=3, block=32, stages=(first, *stages), skips=skips)


def steps_of(
    dataset: Dataset,
    *,
    count: int,
    dp_rank: int = 0,
    dp_size: int = 1,
    step: int = 0,
    micro: int = 2,
    under: DataPolicy | None = None,
) -> Steps:
    split = dataset.split("train")
    order = split.order(under or policy())
    position = order.position_at(step)
    loader = Loader(split, order=order, microbatch=micro, dp_rank=dp_rank, dp_size=dp_size, position=position)
    with loader:
        steps = [batches for batches, _ in zip(loader, range(count), strict=False)]
        return [[whole(batch) for batch in batches] for batches in steps[:count]]


def whole(batch: Batch) -> Batch:
    """All that is made when it is asked for, asked for."""
    assert batch.details
    return batch


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
    order = dataset.split("train").order(policy())
    expected = [order.samples_of(step)[1].blocks for step in range(len(seen) // 12)]
    assert np.array_equal(seen, np.concatenate(expected))


@st.composite
def policies(draw: st.DrawFn) -> DataPolicy:
    steps = sorted(draw(st.sets(st.integers(1, 20), max_size=2)))
    batches, sequences = st.sampled_from([6, 12, 24]), st.sampled_from([32, 16, 8])
    mixture = (("corpus", "1"),)
    stages = tuple(
        Stage(step=step, global_batch=draw(batches), sequence=draw(sequences), mixture=mixture) for step in steps
    )
    skips = tuple(Skip(step=step, batches=2) for step in sorted(draw(st.sets(st.integers(0, 20), max_size=2))))
    return policy(batch=draw(batches), sequence=draw(sequences), stages=stages, skips=skips)


@same_data_set
@given(under=policies(), step=st.integers(0, 60), dp_size=st.integers(1, 4), micro=st.sampled_from([1, 2, 3, 6]))
def test_it_goes_on_from_any_step_under_any_number_of_ranks(
    dataset: Dataset, under: DataPolicy, step: int, dp_size: int, micro: int
) -> None:
    whole_run = steps_of(dataset, count=step + 3, micro=micro, under=under)[step:]
    ranks = [
        steps_of(dataset, count=3, dp_rank=rank, dp_size=dp_size, step=step, micro=micro, under=under)
        for rank in range(dp_size)
    ]
    order = dataset.split("train").order(under)
    for number in range(3):
        batch = order.stage_at(step + number).stage.global_batch
        found = put_together([[rank[number]] for rank in ranks], microbatches=batch // micro)
        assert_same(found, [whole_run[number]])
        index, places = order.samples_of(step + number)
        assert np.concatenate([each.index for each in found[0]]).tolist() == index.tolist()
        assert np.concatenate([each.samples for each in found[0]]).tolist() == places.blocks.tolist()


def test_the_position_is_that_of_the_next_step(dataset: Dataset) -> None:
    split = dataset.split("train")
    order = split.order(policy())
    with Loader(split, order=order, microbatch=2, dp_rank=0, dp_size=1, position=order.position_at(3)) as loader:
        assert (loader.step, loader.position) == (3, 3 * 12 * 32)
        next(loader)
        assert (loader.step, loader.position) == (4, 4 * 12 * 32)


def test_a_part_of_a_block_is_that_part(dataset: Dataset) -> None:
    """Each column of a shorter sample is the cut of the whole one; the first part of a hidden one doesn't count."""
    long, short = (Stage(step=2, global_batch=12, sequence=n, mixture=(("corpus", "1"),)) for n in (32, 16))
    blocks = {
        int(batch.samples[row]): (batch, row)
        for step in steps_of(dataset, count=40)
        for batch in step
        for row in range(2)
    }
    seen = 0
    for batch in (batch for step in steps_of(dataset, count=20, under=policy(stages=(short,))) for batch in step):
        if batch.tokens.shape[1] == 32:
            continue
        for row, number in enumerate(batch.samples.tolist()):
            if number not in blocks:
                continue
            (block, at), seen = blocks[number], seen + 1
            cuts = [slice(start, start + 16) for start in (0, 16)]
            (cut,) = [
                cut
                for cut in cuts
                if np.array_equal(block.tokens[at, cut], batch.tokens[row])
                and np.array_equal(block.targets[at, cut], batch.targets[row])
                and np.array_equal(block.loss_mask[at, cut], batch.loss_mask[row])
            ][:1]
            documents = block.documents[at, cut] - block.documents[at, cut.start]
            assert np.array_equal(documents, batch.documents[row])
            same = block.documents[at, cut] == block.documents[at, cut.start]
            positions = np.where(same, np.arange(16), block.positions[at, cut])
            assert np.array_equal(positions, batch.positions[row])
    assert seen > 50
    under = policy(batch=6, sequence=8, stages=(long,))
    (first, *_), *_ = steps_of(dataset, count=1, step=2, under=under)
    # Twelve samples of eight tokens were given before: three whole blocks of 32.
    places = dataset.split("train").order(under).samples_of(2)[1]
    assert places.hidden[0] == 0
    under = policy(batch=6, sequence=8, stages=(replace(long, step=1),))
    (first, *_), *_ = steps_of(dataset, count=1, step=1, under=under)
    # Six samples of eight tokens are a block and a half.
    places = dataset.split("train").order(under).samples_of(1)[1]
    assert places.hidden[0] == 16 and first.samples[0] == places.blocks[0]
    assert not first.loss_mask[0, :16].any() and first.loss_mask[0, 16:].any()


def test_a_batch_agrees_with_its_blocks(dataset: Dataset) -> None:
    split = dataset.split("train")
    for batch in (batch for step in steps_of(dataset, count=12) for batch in step):
        for row, number in enumerate(batch.samples.tolist()):
            group, at = (int(each[0]) for each in split.geometry.locate(np.array([number])))
            blocks = split.read_group(group).blocks()
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


FIRST_BATCH = """
import sys
from shardline.components.common.storage import Storage
from shardline.components.sharding.dataset import Dataset
from shardline.components.sharding.loader import Loader
from shardline.components.sharding.order import DataPolicy, Stage
before = set(sys.modules)
split = Dataset.open(Storage(sys.argv[1]), sys.argv[2]).split("train")
stage = Stage(step=0, global_batch=4, sequence=32, mixture=(("corpus", "1"),))
order = split.order(DataPolicy(seed=5, window=3, block=32, stages=(stage,)))
with Loader(split, order=order, microbatch=2, dp_rank=0, dp_size=1, position=0) as loader:
    assert next(loader)[0].tokens.any()
print(*sorted(set(sys.modules) - before))
"""


def test_the_first_batch_waits_for_no_import(dataset: Dataset) -> None:
    command = [sys.executable, "-c", FIRST_BATCH, dataset.storage.url, dataset.manifest.key]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "\n"


def test_a_microbatch_that_does_not_divide_the_batch_is_a_bug(dataset: Dataset) -> None:
    with pytest.raises(ValueError, match="microbatch 5"):
        steps_of(dataset, count=1, micro=5)


def test_what_is_held_on_to_stays_as_it_is_though_memory_is_used_again(dataset: Dataset) -> None:
    split = dataset.split("train")
    order = split.order(policy())

    def loader() -> Loader:
        return Loader(split, order=order, microbatch=2, dp_rank=0, dp_size=1, position=0)

    with loader() as steps:
        right = [[batch.tokens.copy() for batch in batches] for batches, _ in zip(steps, range(600), strict=False)]
    held = {}
    with loader() as steps:
        for number, (batches, _) in enumerate(zip(steps, range(600), strict=False)):
            if number % 7 == 3:
                # A view of a view, as torch.from_numpy makes of it.
                held[number] = [batch.tokens[:, :5].T for batch in batches]
            else:
                del batches
    for number, views in held.items():
        for view, tokens in zip(views, right[number], strict=True):
            assert np.array_equal(view.T, tokens[:, :5]), number
