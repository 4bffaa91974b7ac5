"""Forks and merges under other layouts: the parent's curve and samples to the last digit, and the mean of any files.

In float64. A fork that changes nothing is the parent's own continuation; a merge does not depend on the layouts that
its inputs were saved under, nor on the one that it is trained on under.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from shardline.components.common.config import RunConfig
from shardline.components.common.errors import UserError
from shardline.components.common.runfolder import read_config
from shardline.components.common.storage import Storage
from shardline.components.planning.layout import Layout
from shardline.components.sharding import decisions
from shardline.components.sharding.order import Skip
from shardline.components.training.checkpoint import catalog
from shardline.components.training.start import merging
from shardline.components.training.start.making import Named, config_from, make
from tests.distributed import runs
from tests.distributed.runs import LAYOUTS, ONE, losses, samples, train
from tests.unit.training.checkpoint_support import stored

AGREES = 1e-12
EVERY = ("training.checkpoint.every=2",)


class World:
    """A parent of ten steps in one process; two forks of its step 4, trained to step 8 under a layout of their own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.dataset = runs.prepare(root)
        self.parent = train(runs.make_config(root, run="parent", overrides=EVERY), ONE, dataset=self.dataset)
        self.left = self.fork("left", "training.optimizer.lr=0.02", layout=LAYOUTS["two stages x two shards"])
        tensors = Layout(dp_shard=2, tp=2)
        self.right = self.fork("right", "training.optimizer.lr=0.005", layout=tensors)

    def fork(self, name: str, *overrides: str, layout: Layout, step: int = 4, steps: int = 8) -> Storage:
        config = self.config(name, *overrides, step=step, steps=steps)
        return train(config, layout, dataset=self.dataset)

    def config(self, name: str, *overrides: str, step: int, steps: int, parent: Storage | None = None) -> RunConfig:
        named = Named(run=parent or self.parent, step=step)
        loaded = config_from([named], name=name, overrides=(*overrides, f"training.steps={steps}"))
        make(loaded, command="fork", on_part=lambda done, total: None)
        return loaded.config

    def merge(self, name: str, *parents: Named, overrides: tuple[str, ...] = ("training.steps=10",)) -> RunConfig:
        loaded = config_from(parents, name=name, overrides=overrides)
        make(loaded, command="merge", on_part=lambda done, total: None)
        return loaded.config


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("forks"))


def tensors_of(run: Storage, step: int) -> dict[str, torch.Tensor]:
    record = next(each for each in catalog.committed(run) if each.step == step)
    assert catalog.damage(run, record) is None
    return stored(run, record)


@pytest.mark.parametrize("name", ["one process", "two shards", "two stages"])
def test_a_fork_goes_on_with_its_parents_samples_and_losses(world: World, name: str) -> None:
    run = world.fork(f"same-{list(LAYOUTS).index(name)}", layout=LAYOUTS[name], steps=10)
    found, expected = losses(run), losses(world.parent)[4:]
    assert len(found) == 6
    if name == "one process":
        assert found == expected
    assert max(abs(a - b) for a, b in zip(found, expected, strict=True)) <= AGREES
    assert samples(run) == {step: used for step, used in samples(world.parent).items() if step >= 4}


def test_a_change_that_is_made_is_one(world: World) -> None:
    assert abs(losses(world.left)[-1] - losses(world.parent)[7]) > 1e-6
    assert samples(world.left) == {step: samples(world.parent)[step] for step in range(4, 8)}


def test_what_the_parent_passed_over_its_fork_passes_over(world: World) -> None:
    config = runs.make_config(world.root, run="skipping", steps=4, overrides=EVERY)
    parent = train(config, ONE, dataset=world.dataset)
    for skip in (Skip(step=5, batches=1), Skip(step=3, batches=2), Skip(step=5, batches=2)):
        decisions.decide(parent, skip, about={})
    catalog.remove(parent, catalog.committed(parent)[0])
    longer = runs.make_config(world.root, run="skipping", steps=8, overrides=EVERY)
    train(longer, ONE, dataset=world.dataset)
    child = train(world.config("passing", step=4, steps=8, parent=parent), LAYOUTS["two shards"], dataset=world.dataset)
    assert [(skip.at, skip.batches) for skip in read_config(child).training.skip] == [(3, 2), (5, 1), (5, 2)]
    assert samples(child) == {step: used for step, used in samples(parent).items() if step >= 4}
    assert decisions.decided(child) == []


def test_a_fork_that_rolls_back_keeps_its_beginning(world: World) -> None:
    """A spike right after the fork, for which the parent's last samples would be passed over, too."""
    more = ("training.guard={spike: roll-back, window: 8, factor: 0.5, pass_over: 3}", "training.optimizer.lr=100.0")
    config = world.config("spiking", *more, step=10, steps=12)
    with pytest.raises(AssertionError, match="RolledBack"):
        train(config, ONE, dataset=world.dataset)
    run = Storage(f"{config.storage}/runs/spiking")
    (skip,) = decisions.decided(run)
    assert skip.step >= 10 and catalog.committed(run)[-1].step == 10
    calm = config.training.guard.model_copy(update={"spike": "off"})
    config = config.model_copy(update={"training": config.training.model_copy(update={"guard": calm})})
    train(config, ONE, dataset=world.dataset)
    assert len(losses(run)) == 2


def test_a_merge_is_the_mean_whatever_its_inputs_were_saved_under(world: World) -> None:
    config = world.merge("mean", Named(run=world.left, weight=1.0), Named(run=world.right, weight=3.0))
    run = Storage(f"{config.storage}/runs/{config.run}")
    left, right, mean = (tensors_of(each, 8) for each in (world.left, world.right, run))
    assert set(mean) == set(left) == set(right)
    for name, found in mean.items():
        one, other = left[name].numpy(), right[name].numpy()
        assert found.dtype == left[name].dtype == torch.float64
        # To the last digits of what is added, of which some may cancel out.
        assert np.all(np.abs(found.numpy() - (0.25 * one + 0.75 * other)) <= 4e-16 * (np.abs(one) + np.abs(other)))
    # Both moments, and matrices that were cut both ways.
    assert {"optimizer.embedding.weight.exp_avg", "optimizer.embedding.weight.exp_avg_sq"} <= set(mean)
    assert all(not torch.equal(left[name], right[name]) for name in mean)


def test_a_merge_is_trained_on_under_any_layout(world: World) -> None:
    names = ("one process", "two stages x two shards", "interleaved, two stages a rank")
    curves, used = [], []
    for number, name in enumerate(names):
        config = world.merge(f"merged-{number}", Named(run=world.left), Named(run=world.right))
        run = train(config, LAYOUTS[name], dataset=world.dataset)
        curves.append(losses(run))
        used.append(samples(run))
    assert [len(curve) for curve in curves] == [2, 2, 2]
    assert max(abs(a - b) for curve in curves[1:] for a, b in zip(curve, curves[0], strict=True)) <= AGREES
    assert used == [{step: samples(world.parent)[step] for step in (8, 9)}] * 3


def test_small_blocks_and_small_files_hold_the_same(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    parents = (Named(run=world.left, weight=2.0), Named(run=world.right), Named(run=world.parent, step=8))
    at_once = world.merge("at-once", *parents)
    monkeypatch.setattr(merging, "_BLOCK", 700)
    monkeypatch.setattr(merging, "_FILE", 100_000)
    in_parts = world.merge("in-parts", *parents)
    runs_of = [Storage(f"{config.storage}/runs/{config.run}") for config in (at_once, in_parts)]
    files = [len(catalog.committed(run)[0].files) for run in runs_of]
    assert files[0] == 2 and files[1] > 3
    one, other = (tensors_of(run, 8) for run in runs_of)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_forks_that_saw_other_samples_are_not_merged_unasked(world: World) -> None:
    stages = "training.stages=[{at: 6, global_batch: 8}, {at: 7, global_batch: 24}]"
    other = world.fork("otherwise", stages, layout=ONE)
    # As many samples as the others, in other steps.
    with pytest.raises(UserError, match=r"(tokens is .* there|its samples are others than those of .*stages)"):
        world.merge("bad", Named(run=world.left), Named(run=other))
    loaded = config_from([Named(run=world.left), Named(run=other)], name="asked", position_of=1)
    assert make(loaded, command="merge", on_part=lambda done, total: None)["step"] == 8
    assert [stage.at for stage in loaded.config.training.stages] == [6, 7]
