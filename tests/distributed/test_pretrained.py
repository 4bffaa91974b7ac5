"""A run that starts from a Hugging Face model: the same under any layout, better than its start, and back again.

The model has all that ours may have: tied embeddings, stretched positions, wide heads. Parity is in float64 to 1e-12
over ten optimizer steps, as for models of our own.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from shardline.components.common.config import RunConfig
from shardline.components.common.errors import UserError
from shardline.components.common.huggingface.pretrained import Pretrained
from shardline.components.common.runfolder import read_config
from shardline.components.common.storage import Storage
from shardline.components.common.streams import read_all
from shardline.components.evaluation.convert import convert
from shardline.components.planning.layout import Layout
from shardline.components.training.checkpoint import catalog
from shardline.components.training.checkpoint.whole import load_model
from shardline.components.training.start.making import Named, config_from, make
from tests.distributed import runs
from tests.distributed.runs import LAYOUTS, ONE, furthest, losses, train
from tests.pretrained import FEATURES, edit, save

AGREES = 1e-12
MUTANT = "tests.distributed.mutations:train"
TRIED = {
    **{
        name: LAYOUTS[name]
        for name in ("two stages", "two shards", "two stages x two shards", "interleaved, two stages a rank")
    },
    "weights shared by two": Layout(tp=2),
    "weights shared by two, sharded by two": Layout(tp=2, dp_shard=2),
    "weights shared by two, two stages": Layout(tp=2, pp=2),
    "weights shared by two, both ends on a rank": Layout(tp=2, pp=2, schedule="ZBVZeroBubble", stages_per_rank=2),
}


class World:
    """The model, a data set of its tokens, and the undisturbed run of one process."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.model = root / "model"
        save(self.model, **FEATURES["all at once"], vocab_size=400)
        self.dataset = runs.prepare(root)
        tokens = root / "storage" / "datasets" / self.dataset / "tokenizer.json"
        shutil.copy(tokens, self.model)
        self.reference = self.run("reference", ONE)

    def config(
        self, name: str, *, steps: int = runs.STEPS, model: Path | None = None, more: tuple[str, ...] = ()
    ) -> RunConfig:
        folder = model or self.model
        overrides = (f"model={{url: {folder}}}", f"tokenizer={{url: {folder}/tokenizer.json}}")
        return runs.make_config(self.root, run=name, steps=steps, overrides=(*overrides, *more))

    def run(self, name: str, layout: Layout, *, steps: int = runs.STEPS, **options: str) -> Storage:
        return train(self.config(name, steps=steps), layout, dataset=self.dataset, **options)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("pretrained"))


def test_training_goes_on_from_the_model_and_makes_it_better(world: World) -> None:
    curve = losses(world.reference)
    assert curve[-1] < curve[0] - 0.2
    (event,) = [each for each in read_all(world.reference.at("events")) if each["name"] == "model.imported"]
    assert event["data"]["fingerprint"] == Pretrained(str(world.model)).fingerprint
    # Not the start that the seed would have given.
    plain = ("model={layers: 4, dim: 32, heads: 4, kv_heads: 2, hidden: 48, vocab: 400, head_dim: 12}",)
    own = train(runs.make_config(world.root, run="own", steps=1, overrides=plain), ONE, dataset=world.dataset)
    assert abs(losses(own)[0] - curve[0]) > 1e-3


@pytest.mark.parametrize("name", TRIED)
def test_a_layout_changes_nothing(world: World, name: str) -> None:
    run = world.run(f"under-{list(TRIED).index(name)}", TRIED[name])
    assert furthest(losses(run), losses(world.reference)) <= AGREES


def test_a_run_goes_on_under_another_layout_without_its_model(world: World) -> None:
    moved = world.root / "moved"
    shutil.copytree(world.model, moved)
    config = world.config("moves", steps=5, model=moved)
    train(config, LAYOUTS["two stages x two shards"], dataset=world.dataset)
    shutil.rmtree(moved)
    run = train(world.config("moves", model=moved), LAYOUTS["interleaved, two stages a rank"], dataset=world.dataset)
    assert furthest(losses(run), losses(world.reference)) <= AGREES


def test_a_fork_goes_on_without_the_model_that_its_parent_began_with(world: World) -> None:
    named = world.root / "begins-with"
    shutil.copytree(world.model, named)
    parent = train(world.config("begins", steps=5, model=named), ONE, dataset=world.dataset)
    # Its tokens are asked for when a corpus is sharded, and are no part of the start.
    (named / "model.safetensors.index.json").unlink(missing_ok=True)
    for weights in named.glob("*.safetensors"):
        weights.unlink()
    loaded = config_from([Named(run=parent)], name="forked", overrides=[f"training.steps={runs.STEPS}"])
    make(loaded, command="fork", on_part=lambda done, total: None)
    assert loaded.config.model.url is None
    run = train(loaded.config, LAYOUTS["two stages"], dataset=world.dataset)
    expected = losses(world.reference)[5:]
    assert max(abs(a - b) for a, b in zip(losses(run), expected, strict=True)) <= AGREES


@pytest.mark.parametrize(
    ("mistake", "name"),
    [
        ("tied embeddings apart", "two stages"),
        ("tied embeddings counted twice", "two stages"),
        ("tied embeddings apart", "weights shared by two, two stages"),
    ],
)
def test_a_mistake_is_noticed(world: World, mistake: str, name: str) -> None:
    run = world.run(
        f"{mistake.replace(' ', '-')}-{list(TRIED).index(name)}", TRIED[name], entry=MUTANT, mistake=mistake
    )
    assert furthest(losses(run), losses(world.reference)) > 1e-9


def test_a_model_that_changed_before_the_first_checkpoint_is_refused(world: World) -> None:
    other = world.root / "other"
    shutil.copytree(world.model, other)
    config = world.config("changes", model=other)
    with pytest.raises(AssertionError, match="was cut off"):
        train(config, ONE, dataset=world.dataset, entry="tests.distributed.test_pretrained:cut_off")
    edit(other, rms_norm_eps=1e-3)
    with pytest.raises(AssertionError, match=r"UserError: .*other: is not the model that this run began with"):
        train(config, ONE, dataset=world.dataset)


def cut_off(context: object, **arguments: object) -> None:
    """A worker that is lost before it does anything."""
    raise RuntimeError("was cut off")


def test_what_was_trained_opens_in_transformers(world: World, tmp_path: Path) -> None:
    run = world.run("exported", LAYOUTS["two stages"], steps=2)
    record = catalog.current(run)
    assert record is not None
    convert(run, record, target=str(tmp_path))
    theirs, notes = LlamaForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(notes.values()), notes
    ours = load_model(run, record, read_config(run).model.shape(400))
    tokens = torch.arange(60).view(1, 60)
    with torch.no_grad():
        assert (ours(tokens, tokens) - theirs(tokens).logits).abs().max() <= 1e-5
    # It is a model to start from in turn; what isn't an export of ours is left alone.
    assert Pretrained(str(tmp_path)).shape == ours.shape
    assert convert(run, record, target=str(tmp_path))["checkpoint"] == record.folder
    with pytest.raises(UserError, match="something is there already"):
        convert(run, record, target=str(world.model))


def test_in_bf16_the_layouts_are_near_each_other(world: World) -> None:
    curves = [
        losses(
            train(
                world.config(f"bf16-{layout.world}", more=("training.precision=bf16",)), layout, dataset=world.dataset
            )
        )
        for layout in (ONE, LAYOUTS["two stages x two shards"])
    ]
    # bf16 has eight bits: of a loss of about 6 the last one is 0.03.
    assert furthest(*curves) <= 0.03
    assert furthest(curves[0], losses(world.reference)) <= 0.03
