"""Layouts: the cut of the layers, the place of a rank, the choice."""

from __future__ import annotations

import math
import re
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
from shardline.components.planning.layout import Layout, Place, split_layers


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
    assert [layout.place(rank)[:2] for rank in (0, 5, 6, 11)] == [(0, 0), (0, 5), (1, 0), (1, 5)]
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
        # 16 ranks are more than the 8 microbatches and any pipeline has too few for its stages: heads are shared.
        ((), 16, Layout(dp_shard=8, tp=2)),
    ],
)
def test_the_choice(overrides: tuple[str, ...], world: int, expected: Layout) -> None:
    choice = choose(config(*overrides), world=world, vocab=512)
    assert choice.layout == expected
    assert choice.reason


def test_the_layouts_nearest_to_fitting_are_named() -> None:
    with pytest.raises(UserError) as caught:
        choose(config(), world=48, vocab=512)
    named = caught.value.message.partition("(")[2].split("; ")
    assert len(named) == 4 and named[3].startswith("and ") and named[3].endswith(" more)")
    # 8 microbatches: 12 data-parallel ranks are nearer than 48.
    assert "48 data-parallel ranks" not in caught.value.message
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


def test_a_model_of_ones_own_is_never_laid_out_over_tensor_parallel_ranks() -> None:
    own = "model.class=mine:Decoder"
    assert choose(config(own), world=2, vocab=300).layout.tp == 1
    with pytest.raises(UserError, match="tp does not know how to share the weights of mine:Decoder: use dp_shard"):
        choose(config(own, "training.layout.tp=2"), world=2, vocab=300)


def test_float8_is_never_laid_out_over_tensor_parallel_ranks_and_keeps_what_bf16_keeps() -> None:
    chosen = choose(config("training.precision=float8"), world=2, vocab=300)
    assert chosen.layout.tp == 1
    assert chosen.estimate == choose(config("training.precision=bf16"), world=2, vocab=300).estimate
    with pytest.raises(UserError, match="tp does not go with float8: use dp_shard, cp or pp, or take bf16"):
        choose(config("training.precision=float8", "training.layout.tp=2"), world=2, vocab=300)


def test_ranks_that_share_tensors_and_samples_are_next_to_each_other() -> None:
    layout = Layout(dp_replicate=2, tp=2, cp=3, pp=2)
    assert layout.world == 24
    assert [layout.place(rank) for rank in (0, 1, 2, 6, 23)] == [
        Place(pp=0, dp=0, cp=0, tp=0),
        Place(pp=0, dp=0, cp=0, tp=1),
        Place(pp=0, dp=0, cp=1, tp=0),
        Place(pp=0, dp=1, cp=0, tp=0),
        Place(pp=1, dp=1, cp=2, tp=1),
    ]


def test_a_v_brings_the_first_and_the_last_stage_together() -> None:
    layout = Layout(pp=3, schedule="ZBVZeroBubble", stages_per_rank=2)
    assert [layout.stages_of(rank) for rank in range(3)] == [[0, 5], [1, 4], [2, 3]]


@pytest.mark.parametrize(
    ("layout", "overrides", "reason"),
    [
        ("{tp: 2, pp: 1}", ("model.heads=1", "model.kv_heads=1"), "tp=2 does not divide 1 attention heads"),
        ("{tp: 4}", (), "tp=4 does not divide 2 key and value heads"),
        ("{tp: 2}", ("model.hidden=385",), "tp=2 does not divide 385 hidden units"),
        ("{tp: 2}", ("model.vocab=4097",), "tp=2 does not divide 4097 tokens of the vocabulary: set model.vocab"),
        ("{cp: 3}", (), "cp=3 needs sequences that 2 x 3 divides, not 64 tokens"),
        ("{tp: 2}", ("training.sequence=63",), "tp=2 does not divide 63 tokens"),
        ("{dp_shard: 16}", (), "16 data-parallel ranks for 8 microbatches"),
        ("{pp: 4, dp_shard: 4, schedule: 1F1B}", (), "1F1B on 4 pipeline ranks needs at least 4 microbatches"),
        (
            "{pp: 2, dp_shard: 4, schedule: DualPipeV}",
            (),
            "DualPipeV on 2 pipeline ranks needs at least 4 microbatches",
        ),
        ("{tp: 2}", ("training.compile=true",), "can't compile layers whose weights are shared by tp"),
        ("{pp: 2, schedule: DualPipeV}", ("training.compile=true",), "a compiled layer's can't be"),
        ("{pp: 2, dp_shard: 3, schedule: ZBVZeroBubble, recompute: selective}", (), "can go backward only once"),
    ],
)
def test_a_layout_that_cannot_be_is_refused_with_both_numbers(
    layout: str, overrides: tuple[str, ...], reason: str
) -> None:
    # As many processes as asked for; config rules refuse some of these before.
    with pytest.raises(UserError) as caught:
        wanted = config(f"training.layout={layout}", *overrides)
        choose(
            wanted,
            world=math.prod(int(size) for size in re.findall(r"(?:tp|cp|pp|dp_shard): (\d+)", layout)),
            vocab=512,
        )
    assert reason in str(caught.value)


def test_microbatches_that_a_schedule_cannot_split_evenly_are_refused() -> None:
    uneven = config("training.layout={pp: 2, schedule: Interleaved1F1B}", "training.global_batch=10")
    with pytest.raises(UserError, match="runs microbatches in 2 equal rounds on each data-parallel rank; there are 5"):
        choose(uneven, world=2, vocab=512)
    batch = config("training.layout={pp: 2, schedule: ZBVZeroBubble}", "training.global_batch=10")
    assert choose(batch, world=2, vocab=512).layout.stages == 4


def test_every_stage_of_training_must_suit_the_schedule() -> None:
    fewer = config(
        "training.layout={pp: 2, schedule: DualPipeV}", "training.stages=[{at: 5, global_batch: 4}]", "training.steps=9"
    )
    with pytest.raises(UserError, match="needs at least 4 microbatches"):
        choose(fewer, world=2, vocab=512)


def test_resharding_in_a_pipeline_is_refused_and_never_done() -> None:
    with pytest.raises(UserError, match=r"torch 2\.13 loses gradients"):
        config("training.layout={pp: 2, dp_shard: 2, reshard: true}")
    asked = config("training.layout={reshard: true}")
    assert choose(asked, world=4, vocab=512).layout.reshards
    assert all(candidate.layout.pp == 1 for candidate in choose(asked, world=4, vocab=512).candidates)
    assert not Layout(pp=2, dp_shard=2).reshards


def test_auto_shares_tensors_only_when_nothing_else_fits() -> None:
    big = ("model.preset=llama3-8b", "training.precision=bf16", "training.sequence=8192", "training.microbatch=1")
    roomy = choose(config(*big, "resources.memory=80GiB"), world=8, vocab=128_256)
    assert (roomy.layout.tp, roomy.layout.cp) == (1, 1)
    tight = choose(config(*big, "resources.memory=35GiB", "training.layout={recompute: none}"), world=8, vocab=128_256)
    assert tight.layout.tp > 1


def test_auto_recomputes_the_least_that_fits_and_says_so() -> None:
    big = (
        "model.preset=llama3-8b",
        "training.precision=bf16",
        "training.sequence=8192",
        "training.layout={tp: 1, pp: 1}",
    )
    needs = {
        kind: choose(config(*big, f"training.layout.recompute={kind}"), world=8, vocab=128_256).estimate.memory
        for kind in ("none", "selective", "full")
    }
    assert needs["none"] > needs["selective"] > needs["full"]
    for kind, memory in needs.items():
        choice = choose(config(*big, f"resources.memory={int(memory / 0.8) + 1}"), world=8, vocab=128_256)
        assert choice.layout.recompute == kind
        assert kind == "none" or f"recompute={kind} is the least that fits" in choice.reason
