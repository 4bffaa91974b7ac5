"""Documents with weights in training: the loss is the weighted mean of all tokens of a step, under every layout."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from shardline.components.common.config import RunConfig
from shardline.components.common.storage import Storage
from shardline.components.planning.layout import Layout
from shardline.components.sharding.batch import Batch
from shardline.components.sharding.dataset import Dataset
from shardline.components.sharding.loader import Loader
from shardline.components.sharding.order import policy_of
from shardline.components.sharding.step import run as shard
from tests.distributed import evaluating
from tests.distributed.runs import (
    ONE,
    STEPS,
    Job,
    differing,
    furthest,
    losses,
    make_config,
    samples,
    train_each,
    write_corpus,
)
from tests.distributed.runs import train as train_one

AGREES = 1e-12
MUTANT = "tests.distributed.mutations:train"
_FEW = 3
#: The weight of a document with a number, in each field of the corpus. `first` and `second` part the documents in two.
FIELDS = {
    "one": lambda number: 1.0,
    "first": lambda number: float(number % 3 == 0),
    "second": lambda number: float(number % 3 > 0),
    "mixed": lambda number: [0.25, 0.0, 3.0][number % 3],
    "mixed_more": lambda number: [2.0, 0.0, 24.0][number % 3],
}
LAYOUTS = [
    [Layout(dp_shard=2), Layout(tp=2), Layout(cp=2), Layout(pp=2)],
    [Layout(dp_shard=3)],
    [Layout(pp=2, dp_shard=2, schedule="Interleaved1F1B", stages_per_rank=2), Layout(tp=2, cp=2)],
]


class World:
    """The same documents with the weights of each field, as data sets."""

    def __init__(self, root: Path) -> None:
        self.root = root
        write_corpus(root / "corpus")
        texts = sorted((root / "corpus").iterdir())
        records = [
            {"text": path.read_text(), **{name: weigh(number) for name, weigh in FIELDS.items()}}
            for number, path in enumerate(texts)
        ]
        for path in texts:
            path.unlink()
        (root / "corpus" / "all.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
        self.key = {name: str(shard(self.config(name, run=f"data-{name.replace('_', '-')}"))["key"]) for name in FIELDS}

    def config(self, field: str, *, run: str, steps: int = STEPS) -> RunConfig:
        return make_config(self.root, run=run, steps=steps, overrides=(f"corpus.weight_field={field}",))

    def train(self, field: str, *, steps: int = _FEW) -> Storage:
        config = self.config(field, run=f"{field.replace('_', '-')}-{steps}", steps=steps)
        return train_one(config, ONE, dataset=self.key[field])

    def batches(self, field: str) -> list[Batch]:
        """Those of the first step."""
        split = Dataset.open(Storage(str(self.root / "storage")), self.key[field]).split("train")
        order = split.order(policy_of(self.config(field, run="any")))
        with Loader(split, order=order, microbatch=2, dp_rank=0, dp_size=1, position=0) as loader:
            return next(loader)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("weights"))


def total(batches: list[Batch]) -> float:
    return float(sum(batch.loss_weights.sum(dtype=np.float64) for batch in batches))


def test_the_loss_is_the_weighted_mean(world: World) -> None:
    """The sums of two parts of the documents, which have weight 1 in one run each, make that of any other weights."""
    first, second, one = (
        {"loss": losses(world.train(field))[0], "tokens": total(world.batches(field))}
        for field in ("first", "second", "one")
    )
    assert first["tokens"] > 0 and second["tokens"] > 0 and first["tokens"] + second["tokens"] == one["tokens"]
    nats = first["loss"] * first["tokens"] + second["loss"] * second["tokens"]
    assert one["loss"] == pytest.approx(nats / one["tokens"], rel=1e-13)
    assert abs(first["loss"] - second["loss"]) > 1e-6


def test_only_the_proportions_count(world: World) -> None:
    mixed, more = world.train("mixed"), world.train("mixed_more")
    assert total(world.batches("mixed_more")) == 8 * total(world.batches("mixed"))
    assert differing(losses(mixed), losses(more)) <= AGREES
    assert differing(losses(mixed), losses(world.train("one"))) > 1e-3
    assert samples(mixed) == samples(world.train("one"))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("group", LAYOUTS, ids=lambda group: "; ".join(str(layout) for layout in group))
def test_a_layout_changes_nothing(world: World, group: list[Layout]) -> None:
    reference = losses(world.train("mixed", steps=STEPS))
    jobs = [Job(world.config("mixed", run=f"{group[0].world}-{number}"), layout) for number, layout in enumerate(group)]
    apart = {
        str(layout): furthest(losses(run), reference)
        for layout, run in zip(group, train_each(jobs, dataset=world.key["mixed"]), strict=True)
    }
    assert max(apart.values()) <= AGREES, apart


def test_an_evaluation_is_of_text_whatever_its_weight(world: World) -> None:
    found = []
    for field in ("one", "mixed"):
        config = world.config(field, run=f"evaluating-{field}", steps=1)
        run = train_one(config, ONE, dataset=world.key[field], entry="tests.distributed.evaluating:train")
        found.append(json.loads(run.read(evaluating.RESULTS))[0])
    assert found[0]["tokens"] > 0 and found[0] == found[1]


@pytest.mark.timeout(900)
def test_a_mistake_is_noticed(world: World) -> None:
    reference = losses(world.train("mixed"))
    mistakes = {"weights left out": Layout(dp_shard=2), "weights of each rank alone": Layout(dp_shard=2)}
    jobs = [
        Job(world.config("mixed", run=f"mistake{number}", steps=_FEW), layout, MUTANT, {"mistake": mistake})
        for number, (mistake, layout) in enumerate(mistakes.items())
    ]
    for mistake, run in zip(mistakes, train_each(jobs, dataset=world.key["mixed"]), strict=True):
        assert differing(losses(run), reference) > 1e-9, mistake
