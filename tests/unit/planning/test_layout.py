"""Layouts: the cut of the layers, the place of a rank, the choice."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.components.common import config as configs
from shardline.components.common.config import RunConfig
from shardline.components.common.config.presets import PRESETS, ModelShape
from shardline.components.common.errors import UserError
from shardline.components.planning.choose import choose
from shardline.components.planning.estimate import estimate
from shardline.components.planning.layout import Layout, split_layers


def config(*overrides: str) -> RunConfig:
    training = "{steps: 1, global_batch: 16, microbatch: 2, sequence: 64}"
    text = f"{{version: 1, run: x, storage: /d, corpus: /c, training: {training}}}"
    return configs.parse(text, source="x", overrides=overrides).config


@given(layers=st.integers(1, 130), stages=st.integers(1, 130))
def test_layers_are_cut_without_gap_and_evenly(layers: int, stages: int) -> None:
    if stages > layers:
        with pytest.raises(ValueError, match="need as many layers"):
            split_layers(layers, stages)
        return
    parts = split_layers(layers, stages)
    assert [layer for part in parts for layer in part] == list(range(layers))
    assert min(len(part) for part in parts) >= 1
    # The embedding and the head count as a layer each; what is left over can't be cut evenly by more than one.
    weights = [len(part) + (index == 0) + (index == stages - 1) for index, part in enumerate(parts)]
    if layers + 2 >= 3 * stages:
        assert max(weights) - min(weights) <= 1


def test_ranks_and_looped_stages() -> None:
    layout = Layout(dp_replicate=2, dp_shard=3, pp=2, schedule="Interleaved1F1B", stages_per_rank=2)
    assert (layout.world, layout.dp, layout.stages) == (12, 6, 4)
    assert [layout.place(rank) for rank in (0, 5, 6, 11)] == [(0, 0), (0, 5), (1, 0), (1, 5)]
    assert (layout.stages_of(0), layout.stages_of(1)) == ([0, 2], [1, 3])
    assert Layout.from_json(layout.to_json()) == layout


def test_parameters_of_the_published_shapes() -> None:
    sizes = {
        name: replace(PRESETS[name], vocab=128_256).parameters for name in ("llama3-8b", "llama3-70b", "llama3-405b")
    }
    # Hugging Face's model cards: 8.03, 70.6 and 405.9 billion (meta-llama/Llama-3.1-*).
    assert sizes == {"llama3-8b": 8_030_261_248, "llama3-70b": 70_553_706_496, "llama3-405b": 405_853_388_800}


@pytest.mark.parametrize(
    ("overrides", "world", "expected"),
    [
        ((), 1, Layout()),
        ((), 4, Layout(dp_shard=4)),
        (("training.layout.pp=2", "training.layout.schedule=1F1B"), 4, Layout(pp=2, dp_shard=2)),
        (("training.layout={dp_replicate: 2, pp: 1}",), 4, Layout(dp_replicate=2, dp_shard=2)),
        (
            ("training.layout={pp: 2, schedule: Interleaved1F1B}",),
            2,
            Layout(pp=2, schedule="Interleaved1F1B", stages_per_rank=2),
        ),
        # 16 ranks are more than the 8 microbatches, so a pipeline it must be.
        ((), 16, Layout(pp=4, dp_shard=4, schedule="1F1B")),
    ],
)
def test_the_choice(overrides: tuple[str, ...], world: int, expected: Layout) -> None:
    if world == 16:
        with pytest.raises(UserError, match="no layout fits 16 processes"):
            choose(config(*overrides), world=world, vocab=512)
        return
    choice = choose(config(*overrides), world=world, vocab=512)
    assert choice.layout == expected
    assert choice.reason


def test_the_layouts_nearest_to_fitting_are_named() -> None:
    with pytest.raises(UserError) as caught:
        choose(config(), world=24, vocab=512)
    named = caught.value.message.partition("(")[2].split("; ")
    assert len(named) == 4 and named[3].startswith("and ") and named[3].endswith(" more)")
    # 8 microbatches: 12 data-parallel ranks are nearer than 24.
    assert "24 data-parallel ranks" not in caught.value.message
    assert len(str(caught.value)) < 400


def test_a_device_that_is_too_small_is_named() -> None:
    big = ("model.preset=llama3-8b", "training.precision=bf16")
    with pytest.raises(UserError, match=r"needs \d+\.\d GiB on a device"):
        choose(config(*big, "resources.memory=40GiB"), world=2, vocab=128_256)
    fits = choose(config(*big, "resources.memory=80GiB"), world=8, vocab=128_256)
    # 16 bytes a parameter over the shards is the floor of what the states take.
    assert 16 * 8_030_261_248 // 8 < fits.estimate.memory < 0.8 * 80 * 2**30


def test_a_model_without_room_for_every_token_is_refused() -> None:
    with pytest.raises(UserError, match="5000 is less than the tokenizer's 70001 tokens"):
        choose(config("model.vocab=5000"), world=1, vocab=70_001)


def test_tied_embeddings_are_one_parameter_in_one_stage_and_one_on_each_of_two() -> None:
    apart = PRESETS["tiny"]
    shape, tied = (replace(apart, vocab=300, tied=each) for each in (False, True))
    one, two = Layout(), Layout(pp=2)

    def largest(shape: ModelShape, layout: Layout) -> int:
        return estimate(shape, training=config().training, layout=layout).parameters

    rows = 300 * apart.dim
    assert shape.parameters - tied.parameters == largest(shape, one) - largest(tied, one) == rows
    assert largest(shape, two) == largest(tied, two)
