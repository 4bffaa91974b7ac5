"""Small float64 runs on a real data set, and what they recorded: the ground on which layouts are compared."""

from __future__ import annotations

import contextlib
import importlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch.distributed import PrefixStore

from shardline.components.common import config as configs
from shardline.components.common.config import RunConfig
from shardline.components.common.owner import hold
from shardline.components.common.runfolder import adopt_config, run_storage
from shardline.components.common.storage import Storage
from shardline.components.common.streams import by_step, read_all
from shardline.components.common.workers import WorkerContext
from shardline.components.planning.layout import Layout
from shardline.components.sharding.step import DATASET_FILE
from shardline.components.sharding.step import run as shard
from shardline.components.training.checkpoint import catalog
from tests.distributed.group import run_group

TRAIN = "shardline.components.training.worker:train"
STEPS = 10

CONFIG = """\
version: 1
run: {run}
storage: {root}
corpus: {corpus}
tokenizer: {{vocab: 400}}
sharding: {{unit: 6KiB, row_group: 4, held_out: 0.2, workers: 1}}
model: {{layers: 4, dim: 32, heads: 4, kv_heads: 2, hidden: 64, vocab: 400}}
training:
  steps: {steps}
  global_batch: 16
  microbatch: 2
  sequence: 32
  precision: fp64
  window: 4
  optimizer: {{lr: 0.01, clip: 0.5}}
  schedule: {{warmup: 3, decay_steps: 10}}
"""

ONE = Layout()
LAYOUTS = {
    "one process": ONE,
    "two stages": Layout(pp=2),
    "two shards": Layout(dp_shard=2),
    "two stages x two shards": Layout(pp=2, dp_shard=2),
    "three shards, eight microbatches": Layout(dp_shard=3),
    "two replicas x two shards": Layout(dp_replicate=2, dp_shard=2),
    "interleaved, two stages a rank": Layout(pp=2, schedule="Interleaved1F1B", stages_per_rank=2),
}


def write_corpus(folder: Path, *, documents: int = 60) -> None:
    """Documents of very different lengths, so that blocks are padded and hold several documents."""
    folder.mkdir()
    words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu"]
    for number in range(documents):
        length = 5 + (number * 37) % 160
        text = " ".join(words[(number * number + 7 * place * (1 + number % 5)) % 12] for place in range(length))
        (folder / f"{number:03d}.txt").write_text(f"Document {number}. {text}\n", encoding="utf-8")


def make_config(root: Path, *, run: str, steps: int = STEPS, overrides: tuple[str, ...] = ()) -> RunConfig:
    text = CONFIG.format(run=run, root=root / "storage", corpus=root / "corpus", steps=steps)
    return configs.parse(text, source=run, overrides=overrides).config


def prepare(root: Path) -> str:
    """Make the data set once for all runs below `root`; returns its key."""
    write_corpus(root / "corpus")
    return str(shard(make_config(root, run="data"))["key"])


def train(config: RunConfig, layout: Layout, *, dataset: str, entry: str = TRAIN, **arguments: Any) -> Storage:
    """Train under `layout` to the config's last step, from the newest checkpoint; returns the run folder."""
    run = run_storage(config)
    with hold(run) as lease:
        adopt_config(run, config)
        run.write(DATASET_FILE, f'{{"key": "{dataset}"}}'.encode())
        run_group(
            entry,
            world=layout.world,
            run=run,
            generation=lease.next_generation(),
            fence=lease.fence,
            dataset=dataset,
            layout=layout.to_json(),
            device="cpu",
            **arguments,
        )
    return run


@dataclass(frozen=True)
class Job:
    """A run to train under a layout; `entry` is the worker function, called with `arguments` beside the usual ones."""

    config: RunConfig
    layout: Layout
    entry: str = TRAIN
    arguments: Mapping[str, Any] = field(default_factory=dict)


def train_each(jobs: Sequence[Job], *, dataset: str) -> list[Storage]:
    """Train runs whose layouts have as many processes, one after the other in the same ones; returns their folders.

    To start a process takes longer than many a run does, and a worker can be entered any number of times.
    """
    folders, calls = [], []
    with contextlib.ExitStack() as leases:
        for job in jobs:
            run = run_storage(job.config)
            lease = leases.enter_context(hold(run))
            adopt_config(run, job.config)
            run.write(DATASET_FILE, f'{{"key": "{dataset}"}}'.encode())
            place = {"url": run.url, "fence": lease.fence, "generation": lease.next_generation()}
            calls.append({**place, "layout": job.layout.to_json(), "entry": job.entry, **job.arguments})
            folders.append(run)
        (world,) = {job.layout.world for job in jobs}
        first = {"run": folders[0], "generation": 0, "fence": 0}
        entry = "tests.distributed.runs:train_in_turn"
        run_group(entry, world=world, **first, runs=len(jobs), calls=calls, dataset=dataset)
    return folders


def train_in_turn(context: WorkerContext, *, calls: Sequence[dict[str, Any]], dataset: str) -> None:
    """A worker that does the work of one worker of each run in `calls`."""
    for number, call in enumerate(calls):
        turn = replace(
            context,
            run=Storage(call["url"]),
            fence=call["fence"],
            generation=call["generation"],
            store=PrefixStore(str(number), context.store),
        )
        module, _, function = call.pop("entry").partition(":")
        arguments = {name: value for name, value in call.items() if name not in ("url", "fence", "generation")}
        getattr(importlib.import_module(module), function)(turn, dataset=dataset, device="cpu", **arguments)


def losses(run: Storage) -> list[float]:
    """The loss of each optimizer step."""
    return [float(record["data"]["loss"]) for record in by_step(read_all(run.at("metrics")))]


def samples(run: Storage) -> dict[int, list[int]]:
    """The samples that each optimizer step used, by microbatch, as the ranks that computed them recorded it."""
    newest: dict[int, int] = {}
    found: dict[int, dict[int, list[int]]] = defaultdict(dict)
    for record in sorted(read_all(run.at("samples")), key=lambda record: record["generation"]):
        data, step = record["data"], record["data"]["step"]
        if newest.get(step) != record["generation"]:
            newest[step] = record["generation"]
            found[step] = {}
        assert data["microbatch"] not in found[step], "a microbatch was computed twice"
        found[step][data["microbatch"]] = data["indices"]
    return {step: [index for _, part in sorted(parts.items()) for index in part] for step, parts in found.items()}


def furthest(first: list[float], second: list[float]) -> float:
    """The largest difference between two loss curves."""
    assert len(first) == len(second) == STEPS
    return differing(first, second)


def differing(first: list[float], second: list[float]) -> float:
    """The largest difference between two loss curves as far as the shorter one goes."""
    return max(abs(a - b) for a, b in zip(first, second, strict=False))


def same_result(run: Storage, undisturbed: Storage, *, steps: int) -> None:
    """Assert that both have done `steps` optimizer steps, with the same losses and the same samples."""
    expected, found = losses(undisturbed), losses(run)
    assert len(found) == steps
    assert max(abs(a - b) for a, b in zip(found, expected, strict=True)) <= 1e-10
    assert samples(run) == samples(undisturbed)


def done_anew(run: Storage) -> list[int]:
    """The optimizer steps that were done more than once."""
    times = Counter(record["data"]["step"] for record in read_all(run.at("metrics")) if record["name"] == "train")
    return sorted(step for step, count in times.items() if count > 1)


def worlds(run: Storage) -> list[int]:
    """The world size of each generation."""
    return [each["data"]["world"] for each in read_all(run.at("events")) if each["name"] == "generation.started"]


def saved(run: Storage, step: int) -> bool:
    """Whether there is a checkpoint of optimizer step `step` or a later one."""
    return last_saved(run) >= step


def last_saved(run: Storage) -> int:
    """The optimizer step of the newest checkpoint; 0 before there is one."""
    found = catalog.current(run)
    return found.step if found else 0
