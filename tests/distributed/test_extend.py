"""The model and the optimizer of examples/extend/ under one process and others: the same float64 losses, to 1e-12."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardline.components.common.config import RunConfig
from shardline.components.common.storage import Storage
from shardline.components.planning.layout import Layout
from shardline.components.training.checkpoint import catalog
from tests.distributed import runs
from tests.distributed.runs import ONE, Job, furthest, losses, samples, train, train_each

AGREES = 1e-12
OWN = ("model.class=examples.extend.parallel:Decoder", "training.optimizer.name=examples.extend.ademamix:AdEMAMix")
TWO_STAGES, TWO_SHARDS, SHARED_SAMPLES = Layout(pp=2, recompute="full"), Layout(dp_shard=2), Layout(cp=2)


class World:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.dataset = runs.prepare(root)
        self.reference = train(self.config("reference"), ONE, dataset=self.dataset)

    def config(self, run: str, *, steps: int = runs.STEPS) -> RunConfig:
        return runs.make_config(self.root, run=run, steps=steps, overrides=OWN)

    def train_each(self, *jobs: Job) -> list[Storage]:
        return train_each(jobs, dataset=self.dataset)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("extend"))


def test_they_are_what_trains(world: World) -> None:
    curve = losses(world.reference)
    assert curve[-1] < curve[0] - 0.5
    for override in OWN:
        config = runs.make_config(world.root, run="other", overrides=tuple(each for each in OWN if each != override))
        other = losses(train(config.model_copy(update={"run": override[:5]}), ONE, dataset=world.dataset))
        assert furthest(other, curve) > 1e-3, override
    record = catalog.committed(world.reference)[0]
    index = world.reference.read(f"{record.folder}/{record.index}").decode()
    assert all(name in index for name in ("model.layers.3.inputs.weight", "optimizer.layers.3.inputs.weight.slow"))
    assert record.identity_keys["model.class"] == "examples.extend.parallel:Decoder"
    assert record.identity_keys["training.optimizer.name"] == "examples.extend.ademamix:AdEMAMix"


def test_a_layout_changes_nothing(world: World) -> None:
    layouts = {"stages": TWO_STAGES, "shards": TWO_SHARDS, "context": SHARED_SAMPLES}
    found = world.train_each(*(Job(world.config(name), layout) for name, layout in layouts.items()))
    apart = {name: furthest(losses(run), losses(world.reference)) for name, run in zip(layouts, found, strict=True)}
    assert max(apart.values()) <= AGREES, apart
    assert all(samples(run) == samples(world.reference) for run in found)


def test_a_run_goes_on_under_another_layout(world: World) -> None:
    changes = {"to-shards": (TWO_STAGES, TWO_SHARDS), "to-stages": (TWO_SHARDS, TWO_STAGES)}
    world.train_each(*(Job(world.config(name, steps=5), before) for name, (before, _) in changes.items()))
    found = world.train_each(*(Job(world.config(name), after) for name, (_, after) in changes.items()))
    for run in found:
        assert [record.step for record in catalog.committed(run)] == [10, 5]
        assert furthest(losses(run), losses(world.reference)) <= AGREES
