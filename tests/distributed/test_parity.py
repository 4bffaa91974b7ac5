"""Same samples and same model where a run goes on under another layout, and each mistake of a kind is noticed.

Float64 loss curves agree to 1e-12 over ten optimizer steps; `test_layouts` has all kinds of layouts beside each other.
Real processes over gloo on a real data set whose blocks are padded and hold several documents.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from shardline.components.common.storage import Storage
from shardline.components.planning.layout import Layout
from shardline.components.sharding.dataset import Dataset
from shardline.components.sharding.loader import held_out_batches
from shardline.components.sharding.order import policy_of
from shardline.components.training.checkpoint import catalog
from tests.distributed import runs
from tests.distributed.runs import LAYOUTS, ONE, STEPS, furthest, losses, samples, train

AGREES = 1e-12
MUTANT = "tests.distributed.mutations:train"


class World:
    """The data set, and the undisturbed run of one process that all others are compared with."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.dataset = runs.prepare(root)
        self.reference = train(runs.make_config(root, run="reference"), ONE, dataset=self.dataset)

    def run(self, name: str, layout: Layout, *, steps: int = STEPS, **options: str) -> Storage:
        return train(runs.make_config(self.root, run=name, steps=steps), layout, dataset=self.dataset, **options)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("parity"))


def slug(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name).strip("-")


def test_the_reference_learns_and_its_batches_are_uneven(world: World) -> None:
    curve = losses(world.reference)
    assert curve[-1] < curve[0] - 0.5
    data = Dataset.open(Storage(str(world.root / "storage")), world.dataset)
    batches = list(held_out_batches(data.split("train"), microbatch=1, dp_rank=0, dp_size=1))
    assert not all(batch.loss_mask.all() for batch in batches), "no block is padded: masks would not matter"
    assert any(batch.documents.max() > 0 for batch in batches), "no block holds two documents"


def test_the_recorded_samples_are_those_of_the_order(world: World) -> None:
    data = Dataset.open(Storage(str(world.root / "storage")), world.dataset)
    config = runs.make_config(world.root, run="reference")
    order = data.split("train").order(policy_of(config))
    found = samples(world.reference)
    assert sorted(found) == list(range(STEPS))
    for step, indices in found.items():
        assert indices == order.samples_of(step)[1].blocks.tolist()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("two stages", "three shards, eight microbatches"),
        ("two stages x two shards", "one process"),
        ("three shards, eight microbatches", "two shards"),
        ("interleaved, two stages a rank", "two replicas x two shards"),
    ],
)
def test_a_run_goes_on_under_another_layout(world: World, before: str, after: str) -> None:
    name = f"{slug(before)[:20]}-to-{slug(after)[:20]}".strip("-")
    world.run(name, LAYOUTS[before], steps=5)
    run = world.run(name, LAYOUTS[after])
    assert [record.step for record in catalog.committed(run)] == [10, 5]
    assert furthest(losses(run), losses(world.reference)) <= AGREES
    assert samples(run) == samples(world.reference)


@pytest.mark.parametrize(
    ("mistake", "name"),
    [
        ("gradient scaled by dp", "two shards"),
        ("one sample corrupted", "three shards, eight microbatches"),
        ("one mask dropped", "two stages"),
        ("clip per stage", "two stages"),
    ],
)
def test_a_mistake_is_noticed(world: World, mistake: str, name: str) -> None:
    run = world.run(slug(mistake), LAYOUTS[name], entry=MUTANT, mistake=mistake)
    assert furthest(losses(run), losses(world.reference)) > 1e-9


def test_a_mistake_in_the_order_is_noticed_by_loss_and_by_samples(world: World) -> None:
    run = world.run(
        "swap-across-steps", LAYOUTS["two shards"], entry=MUTANT, mistake="two samples swapped across steps"
    )
    assert furthest(losses(run), losses(world.reference)) > 1e-9
    found, expected = samples(run), samples(world.reference)
    assert [step for step in expected if found[step] != expected[step]] == [2, 3]
    assert sorted(found[2] + found[3]) == sorted(expected[2] + expected[3]), "not a swap: other samples were used"


def test_a_lost_moment_is_noticed_on_resume(world: World) -> None:
    world.run("moment", LAYOUTS["two shards"], steps=5)
    run = world.run("moment", LAYOUTS["two stages"], entry=MUTANT, mistake="one moment lost")
    assert furthest(losses(run), losses(world.reference)) > 1e-9
