"""Every kind of parallelism beside every other: float64 loss curves agree with one process to 1e-12 over ten steps.

The layouts are not written down but enumerated and chosen by `layouts`, so that each pair of features is there. They
run on the data set of `test_parity`: padded blocks of several documents, and for some layouts uneven microbatches.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

from shardline.components.common.storage import Storage
from shardline.components.planning.layout import Layout
from tests.distributed import evaluating, runs
from tests.distributed.layouts import covering, every_layout, pairs
from tests.distributed.runs import ONE, STEPS, Job, differing, furthest, losses, samples, train, train_each

AGREES = 1e-12
_MICROBATCHES = 8
_TOGETHER = 4
MUTANT = "tests.distributed.mutations:train"
EVALUATING = "tests.distributed.evaluating:train"
#: Curves differ from the first steps on where there is a mistake.
_FEW = 3

_enumerated = list(every_layout(runs.make_config(Path("/nowhere"), run="enumeration")))
CHOSEN = covering(_enumerated, microbatches=_MICROBATCHES)


def in_groups(layouts: list[Layout]) -> list[list[Layout]]:
    """Layouts with as many processes, up to `_TOGETHER` of them."""
    by_world = defaultdict(list)
    for layout in layouts:
        by_world[layout.world].append(layout)
    return [
        group[start : start + _TOGETHER]
        for _, group in sorted(by_world.items())
        for start in range(0, len(group), _TOGETHER)
    ]


class World:
    """The data set, and the undisturbed run of one process that all others are compared with."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.dataset = runs.prepare(root)
        self.reference = train(runs.make_config(root, run="reference"), ONE, dataset=self.dataset)

    def job(self, layout: Layout, *, run: str, steps: int = STEPS, entry: str = runs.TRAIN, **arguments: str) -> Job:
        return Job(runs.make_config(self.root, run=run, steps=steps), layout, entry, arguments)

    def train(self, *jobs: Job) -> list[Storage]:
        return train_each(jobs, dataset=self.dataset)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("layouts"))


def test_the_layouts_are_many_and_leave_no_pair_out() -> None:
    assert len(CHOSEN) >= 24
    have = set().union(*(pairs(layout, microbatches=_MICROBATCHES) for layout in CHOSEN))
    axes = ("dp_replicate", "dp_shard", "tp", "cp", "pp")
    assert {frozenset([one, other]) for one in axes for other in axes} <= have
    for schedule in ("GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "DualPipeV"):
        assert {frozenset([schedule, axis]) for axis in ("dp_replicate", "dp_shard", "cp", "full")} <= have
    assert {frozenset(["uneven", "tp"]), frozenset(["tp", "full"]), frozenset(["ZBVZeroBubble", "tp"])} <= have


@pytest.mark.timeout(900)
@pytest.mark.parametrize("group", in_groups(CHOSEN), ids=lambda group: "; ".join(str(layout) for layout in group))
def test_layouts_change_nothing(world: World, group: list[Layout]) -> None:
    found = world.train(*(world.job(layout, run=f"l{CHOSEN.index(layout)}") for layout in group))
    expected = losses(world.reference)
    apart = {str(layout): furthest(losses(run), expected) for layout, run in zip(group, found, strict=True)}
    assert max(apart.values()) <= AGREES, apart
    for run in found:
        assert samples(run) == samples(world.reference)


V = Layout(pp=2, schedule="ZBVZeroBubble", stages_per_rank=2)
#: Runs of five steps under the first layout and five under the second, by the processes of each.
RESUMED = {
    (2, 4): [
        (Layout(tp=2), Layout(pp=2, dp_shard=2, schedule="DualPipeV", stages_per_rank=2)),
        (Layout(cp=2), Layout(tp=2, pp=2)),
        (V, Layout(dp_shard=2, tp=2)),
    ],
    # Thirds of halves: shards whose sizes differ, in an order of their own.
    (6, 1): [(Layout(dp_shard=3, tp=2), ONE), (Layout(pp=3, cp=2), ONE)],
    (1, 4): [(ONE, Layout(cp=2, tp=2)), (ONE, Layout(cp=4))],
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("sizes", RESUMED, ids=lambda sizes: f"{sizes[0]} to {sizes[1]} processes")
def test_a_run_goes_on_under_another_layout(world: World, sizes: tuple[int, int]) -> None:
    changes = RESUMED[sizes]
    names = [f"from{sizes[0]}-{number}" for number in range(len(changes))]
    world.train(*(world.job(old, run=name, steps=5) for name, (old, _) in zip(names, changes, strict=True)))
    found = world.train(*(world.job(new, run=name) for name, (_, new) in zip(names, changes, strict=True)))
    apart = {
        f"{old} to {new}": furthest(losses(run), losses(world.reference))
        for (old, new), run in zip(changes, found, strict=True)
    }
    assert max(apart.values()) <= AGREES, apart


INTERRUPTED = [
    V,
    Layout(pp=2, schedule="DualPipeV", stages_per_rank=2),
    Layout(pp=2, schedule="InterleavedZeroBubble", stages_per_rank=2),
    Layout(pp=2, schedule="GPipe"),
    Layout(cp=2),
    Layout(tp=2),
]


@pytest.mark.timeout(900)
def test_an_evaluation_is_exact_and_training_does_not_notice(world: World) -> None:
    (alone,) = world.train(world.job(ONE, run="evaluating", steps=_FEW, entry=EVALUATING))
    expected = json.loads(alone.read(evaluating.RESULTS))
    assert len(expected) == _FEW and expected[0]["nats"] > expected[-1]["nats"]
    found = world.train(
        *(
            world.job(layout, run=f"evaluating{number}", steps=_FEW, entry=EVALUATING)
            for number, layout in enumerate(INTERRUPTED)
        )
    )
    for layout, run in zip(INTERRUPTED, found, strict=True):
        assert differing(losses(run), losses(world.reference)) <= AGREES, layout
        for evaluation, wanted in zip(json.loads(run.read(evaluating.RESULTS)), expected, strict=True):
            assert (evaluation["tokens"], evaluation["bytes"]) == (wanted["tokens"], wanted["bytes"])
            assert evaluation["nats"] == pytest.approx(wanted["nats"], rel=1e-13), layout


@pytest.mark.timeout(900)
def test_compiled_layers_and_mixed_precision_train_the_same_model(world: World) -> None:
    """bf16 rounds to 8 bits: its curve is within a hundredth of the exact one, and follows it."""
    layout = Layout(dp_shard=2)
    options = {"compiled": "training.compile=true", "bf16": "training.precision=bf16"}
    configs = [
        runs.make_config(world.root, run=name, steps=_FEW, overrides=(option,)) for name, option in options.items()
    ]
    compiled, bf16 = world.train(*(Job(config, layout) for config in configs))
    assert differing(losses(compiled), losses(world.reference)) <= AGREES
    assert 0 < differing(losses(bf16), losses(world.reference)) < 1e-2


@pytest.mark.timeout(900)
def test_layers_in_float8_train_about_the_same_model_and_go_on_under_another_layout(world: World) -> None:
    """Its products have three bits or two behind the leading one."""
    first, all_of_it = (
        runs.make_config(world.root, run="float8", steps=steps, overrides=("training.precision=float8",))
        for steps in (_FEW, 2 * _FEW)
    )
    arguments = {"entry": "tests.distributed.emulating:train", "dataset": world.dataset}
    train(first, Layout(dp_shard=2, recompute="selective"), **arguments)
    run = train(all_of_it, V, **arguments)
    assert 1e-4 < differing(losses(run), losses(world.reference)) < 0.2


MISTAKES = {
    "context without its offset": Layout(cp=2),
    "context in a row": Layout(cp=2),
    "recomputed otherwise": Layout(dp_shard=2, recompute="full"),
    "stages of a V swapped": V,
    "norms not summed": Layout(tp=2),
    "copies counted in the norm": Layout(tp=2),
    "tensor-parallel peers counted": Layout(tp=2),
    "shards of shared weights in a row": Layout(dp_shard=2, tp=2),
    # What torch 2.13 does without a word, and why parameters stay gathered in a pipeline.
    "resharded in a pipeline": Layout(pp=2, dp_shard=2, schedule="ZBVZeroBubble", stages_per_rank=2),
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", sorted({layout.world for layout in MISTAKES.values()}))
def test_a_mistake_is_noticed(world: World, size: int) -> None:
    made = {mistake: layout for mistake, layout in MISTAKES.items() if layout.world == size}
    jobs = [
        world.job(layout, run=f"m{size}-{number}", steps=_FEW, entry=MUTANT, mistake=mistake)
        for number, (mistake, layout) in enumerate(made.items())
    ]
    apart = {
        mistake: differing(losses(run), losses(world.reference))
        for mistake, run in zip(made, world.train(*jobs), strict=True)
    }
    assert min(apart.values()) > 1e-9, apart
