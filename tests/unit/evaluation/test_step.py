"""The evaluation step on a small run that was really trained."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.distributed import HashStore

from shardline.components.common.config import RunConfig, parse
from shardline.components.common.errors import DamagedData, UserError
from shardline.components.common.events import EventLog
from shardline.components.common.owner import Lease
from shardline.components.common.runfolder import run_storage
from shardline.components.common.storage import Storage
from shardline.components.common.streams import read_all
from shardline.components.common.workers import Job, WorkerContext
from shardline.components.evaluation import step
from shardline.components.evaluation.convert import convert
from shardline.components.sharding import step as shard_step
from shardline.components.training import step as training
from shardline.components.training.checkpoint import catalog
from shardline.components.training.checkpoint.whole import load_model
from tests.distributed.group import run_group

CONFIG = """
version: 1
run: small
storage: {root}
corpus: {root}/corpus
tokenizer: {{vocab: 300}}
sharding: {{held_out: 0.2, row_group: 4}}
model: {{layers: 2, dim: 32, heads: 4, kv_heads: 2, hidden: 48}}
training: {{steps: 6, global_batch: 8, microbatch: 2, sequence: 32, checkpoint: {{every: 3}}, optimizer: {{lr: 0.01}}}}
evaluation: {{prompts: ["The ", "<b>"], new_tokens: 8}}
"""


class InThisProcess:
    """An agent of one worker that is this process itself."""

    def run(self, job: Job, *, run: Storage, lease: Lease, events: EventLog) -> None:
        generation = lease.next_generation()
        context = WorkerContext(
            generation=generation,
            rank=0,
            world=1,
            local_rank=0,
            store=HashStore(),
            run=run,
            fence=lease.fence,
            timeout=timedelta(seconds=60),
        )
        module, _, function = job.entry.partition(":")
        getattr(import_module(module), function)(context, **job.arguments(generation, 1))


class Group:
    """An agent of several processes."""

    def __init__(self, world: int) -> None:
        self._world = world

    def run(self, job: Job, *, run: Storage, lease: Lease, events: EventLog) -> None:
        generation = lease.next_generation()
        arguments = job.arguments(generation, self._world)
        run_group(job.entry, world=self._world, run=run, generation=generation, fence=lease.fence, **arguments)


class Nobody:
    """An agent for a step that must not need one."""

    def run(self, job: Job, *, run: Storage, lease: Lease, events: EventLog) -> None:
        pytest.fail("workers were started again")


def config_at(root: Path, *overrides: str) -> RunConfig:
    return parse(CONFIG.format(root=root), source="config.yaml", overrides=overrides, ignore_environment=True).config


def train(root: Path, *overrides: str) -> None:
    corpus = root / "corpus"
    corpus.mkdir(parents=True)
    words = ["the", "loss", "of", "a", "pod", "must", "not", "lose", "a", "sample", "größe", "数"]
    for number in range(40):
        drawn = np.random.default_rng(number).choice(words, 120)
        (corpus / f"{number:02d}.txt").write_text(" ".join(drawn) + "\n")
    config = config_at(root, *overrides)
    shard_step.run(config)
    training.run(config, agent=InThisProcess())


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("trained") / "root"
    train(root)
    return root


@pytest.fixture
def fresh(trained: Path, tmp_path: Path) -> Callable[..., RunConfig]:
    """A copy of the trained run, to do harm to."""
    root = tmp_path / "root"
    shutil.copytree(trained / "runs", root / "runs")
    for name in ("datasets", "shards", "corpus"):
        (root / name).symlink_to(trained / name)
    # The run's own copy of the config names the root it was made under.
    written = root / "runs/small/config.yaml"
    written.write_text(written.read_text().replace(str(trained), str(root)))
    return lambda *overrides: config_at(root, *overrides)


def named(config: RunConfig, name: str) -> list[dict[str, Any]]:
    return [event for event in read_all(run_storage(config).at("events")) if event["name"] == name]


def test_every_held_out_token_counts_once(fresh: Callable[..., RunConfig]) -> None:
    config = fresh()
    result = step.run(config, agent=InThisProcess())
    data, run = shard_step.find_dataset(config), run_storage(config)
    record = catalog.current(run)
    assert record is not None
    model = load_model(run, record, config.model.shape(data.manifest.vocab))
    # The same sum by another way: piece by piece of a document, each from its end-of-text token to the next one.
    nats, tokens = 0.0, 0
    split = data.split("held_out")
    for blocks in (split.read_group(group).blocks() for group in range(split.groups)):
        for row in range(len(blocks)):
            ids = torch.from_numpy(blocks.tokens[row, : blocks.length[row]].astype(np.int64))
            starts = blocks.starts[blocks.bounds[row] : blocks.bounds[row + 1]].tolist()
            for begin, stop in zip(starts, [*starts[1:], len(ids) - 1], strict=True):
                piece = ids[begin : stop + 1]
                with torch.no_grad():
                    logits = model(piece[None, :-1], torch.arange(len(piece) - 1)[None], None)[0]
                nats += float(torch.nn.functional.cross_entropy(logits.double(), piece[1:], reduction="sum"))
                tokens += len(piece) - 1
    size = sum(len(text.encode()) for text in data.texts("held_out"))
    assert (result["tokens"], result["bytes"]) == (tokens, size)
    assert result["loss"] == pytest.approx(nats / tokens, rel=1e-5)
    assert result["bits_per_byte"] == pytest.approx(nats / math.log(2) / size, rel=1e-5)
    assert piece[-1] == data.manifest.end_of_text_id  # the end of the last document is a target, too


@pytest.mark.parametrize(("axis", "world"), [("pp", 2), ("dp_shard", 3)])
def test_another_layout_measures_the_same(fresh: Callable[..., RunConfig], axis: str, world: int) -> None:
    alone = step.run(fresh(), agent=InThisProcess())
    config = fresh(f"training.layout.{axis}={world}")
    shutil.rmtree(run_storage(config).local_path("evaluation"))
    together = step.run(config, agent=Group(world))
    assert together["loss"] == pytest.approx(alone["loss"], rel=1e-6)
    assert (together["tokens"], together["bytes"]) == (alone["tokens"], alone["bytes"])


def test_the_result_is_complete_and_a_second_run_finds_it_done(fresh: Callable[..., RunConfig]) -> None:
    config = fresh()
    run = run_storage(config)
    result = step.run(config, agent=InThisProcess())
    assert json.loads(run.read(step.result_file(6))) == result
    assert run.names("evaluation") == ["step-000000000006.json"]
    assert result["decoded"] == {"bytes": result["bytes"], "lossless": True}
    assert set(result["compressors"]) == {"gzip_9", "xz"}
    assert [sample["prompt"] for sample in result["samples"]] == ["The ", "<b>"]
    assert all(0 <= sample["tokens"] <= 8 for sample in result["samples"])
    assert result["gate"]["passed"] is True
    assert step.run(config, agent=Nobody()) == result
    for name in ("evaluation.finished", "gate.decided", "model.exported"):
        assert len(named(config, name)) == 1, name
    assert named(config, "gate.decided")[0]["reason"]


OWN = ("model.class=examples.extend.parallel:Decoder", "training.optimizer.name=examples.extend.ademamix:AdEMAMix")


def test_a_model_of_ones_own_is_measured_and_tried_and_not_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[3]))
    root = tmp_path / "root"
    train(root, *OWN)
    config = config_at(root, *OWN)
    run = run_storage(config)
    result = step.run(config, agent=InThisProcess())
    assert 0 < result["loss"] < 10 and [sample["prompt"] for sample in result["samples"]] == ["The ", "<b>"]
    assert run.names("model") == []
    (event,) = named(config, "model.not_exported")
    assert event["data"]["class"] == "examples.extend.parallel:Decoder" and "no form" in event["reason"]
    record = catalog.current(run)
    assert record is not None
    with pytest.raises(UserError, match=r"no form for a model\.class .*name a file that ends in \.safetensors"):
        convert(run, record, target=str(tmp_path / "hf"))
    assert not (tmp_path / "hf").exists()
    made = convert(run, record, target=str(tmp_path / "own.safetensors"))
    assert set(load_file(tmp_path / "own.safetensors")) >= {"layers.0.inputs.weight", "head.weight"}
    assert made["format"] == "safetensors"


def test_a_lost_export_is_made_again_without_workers(fresh: Callable[..., RunConfig]) -> None:
    config = fresh()
    step.run(config, agent=InThisProcess())
    run = run_storage(config)
    before = run.read("model/model.safetensors")
    run.delete("model/model.safetensors")
    step.run(config, agent=Nobody())
    assert run.read("model/model.safetensors") == before


def test_a_new_threshold_is_judged_without_workers(fresh: Callable[..., RunConfig]) -> None:
    config = fresh()
    step.run(config, agent=InThisProcess())
    strict = fresh("gate.max_bits_per_byte=0.01")
    result = step.run(strict, agent=Nobody())
    assert result["gate"]["passed"] is False
    assert [event["data"]["passed"] for event in named(strict, "gate.decided")] == [True, False]
    assert json.loads(run_storage(strict).read(step.result_file(6)))["gate"]["passed"] is False


def test_other_prompts_are_tried_out(fresh: Callable[..., RunConfig]) -> None:
    first = step.run(fresh(), agent=InThisProcess())
    second = step.run(fresh("evaluation.prompts=[a]"), agent=InThisProcess())
    assert [sample["prompt"] for sample in second["samples"]] == ["a"]
    assert second["loss"] == first["loss"]


def test_fewer_steps_than_are_done_leave_nothing_to_train(fresh: Callable[..., RunConfig]) -> None:
    config = fresh("training.steps=3")
    assert training.run(config, agent=Nobody())["step"] == 6
    (skipped,) = named(config, "training.skipped")
    assert skipped["reason"] == "step 6 is done, training.steps is 3: nothing to train"
    assert len(named(config, "training.finished")) == 1  # when it was trained
    assert step.run(config, agent=InThisProcess())["step"] == 6


def test_little_held_out_text_is_told(fresh: Callable[..., RunConfig]) -> None:
    config = fresh()
    result = step.run(config, agent=InThisProcess())
    assert f"{result['documents']} documents" in result["rough"]
    (event,) = named(config, "evaluation.rough")
    assert event["reason"] == result["rough"] and event["data"]["bytes"] == result["bytes"]


@pytest.mark.parametrize(
    ("documents", "size", "is_rough"), [(10, 65_536, False), (9, 1 << 20, True), (1000, 65_535, True)]
)
def test_what_is_little(documents: int, size: int, is_rough: bool) -> None:
    assert bool(step.rough(documents=documents, bytes=size)) is is_rough


def test_a_run_without_a_checkpoint_says_what_to_do(fresh: Callable[..., RunConfig]) -> None:
    config = fresh()
    shutil.rmtree(run_storage(config).local_path("checkpoints"))
    with pytest.raises(UserError, match=r"nothing to evaluate.*shardline train"):
        step.run(config, agent=Nobody())


def test_a_damaged_checkpoint_is_no_result(fresh: Callable[..., RunConfig]) -> None:
    config = fresh()
    run = run_storage(config)
    record = catalog.current(run)
    assert record is not None
    path = run.local_path(f"{record.folder}/{next(name for name in record.files if name != record.index)}")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedData, match="goes on from optimizer step 3"):
        step.run(config, agent=InThisProcess())
    assert not run.exists(step.result_file(6))
    assert not run.exists("model/export.json")


def test_nothing_held_out_is_nothing_measured_but_exported(tmp_path: Path) -> None:
    root = tmp_path / "root"
    train(root, "sharding.held_out=0")
    config = config_at(root, "sharding.held_out=0")
    result = step.run(config, agent=Nobody())
    assert result["loss"] is None and result["compressors"] is None
    assert result["gate"]["passed"] is True
    assert run_storage(config).exists("model/export.json")
    strict = config_at(root, "sharding.held_out=0", "gate.max_bits_per_byte=2.0")
    assert step.run(strict, agent=Nobody())["gate"]["passed"] is False
