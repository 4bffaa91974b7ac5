"""Our optimizer step beside a bare PyTorch loop: `python -m benchmarks.step [--processes 2] [--pairs 30] ...`.

Both train the same model with the same batch sizes, AdamW and clipping, sharded by FSDP2 where there are several
processes, in the same processes, by turns of a few steps. Ours has its loader (compressed shards, hashes checked,
shuffled), records metrics, samples and status as in a run, and checks every step; the bare loop has its tokens ready in
memory. Prints the ratio of their speeds, bare time / our time, with a 95 % confidence interval over the pairs.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

from shardline.components.common.config import RunConfig, parse
from shardline.components.common.owner import hold
from shardline.components.common.runfolder import adopt_config, run_storage
from shardline.components.common.storage import Storage
from shardline.components.common.workers import WorkerContext
from shardline.components.planning.layout import Layout
from shardline.components.sharding.dataset import Dataset
from shardline.components.sharding.loader import Loader
from shardline.components.sharding.making import shard
from shardline.components.sharding.order import policy_of
from shardline.components.training.guard import Watch
from shardline.components.training.memory import collected
from shardline.components.training.model import Transformer
from shardline.components.training.recorder import Recorder
from shardline.components.training.session import open_session

CONFIG = """\
version: 1
run: step
storage: {root}
corpus: "stdlib:"
tokenizer: {{vocab: 4096}}
sharding: {{held_out: 0}}
model: {{layers: {layers}, dim: {dim}, heads: 4, kv_heads: 4, hidden: {hidden}, attention: causal, max_positions: 4096}}
training:
  steps: 1000000
  global_batch: {batch}
  microbatch: {microbatch}
  sequence: {sequence}
  schedule: {{decay: constant}}
"""
#: Optimizer steps in a turn, and turns at the beginning that don't count.
_TURN, _WARM_UP = 3, 2


def main() -> None:
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="shardline-bench-") as folder:
        config = config_of(arguments, folder)
        key = shard(config).key
        run = run_storage(config)
        with hold(run) as lease:
            adopt_config(run, config)
            store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            context = multiprocessing.get_context("spawn")
            results = context.Queue()
            place = {"run": run.url, "fence": lease.fence, "world": arguments.processes, "port": store.port, "key": key}
            workers = [
                context.Process(target=work, args=(rank, place, vars(arguments), folder, results))
                for rank in range(arguments.processes)
            ]
            for worker in workers:
                worker.start()
            ratios = results.get()
            for worker in workers:
                worker.join()
    print(json.dumps(ratios) if arguments.json else told(ratios, arguments))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--sequence", type=int, default=256)
    parser.add_argument("--microbatch", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=1, help="microbatches of a process in an optimizer step")
    parser.add_argument("--json", action="store_true", help="print the ratio of every pair as JSON")
    return parser.parse_args()


def config_of(arguments: argparse.Namespace, folder: str) -> RunConfig:
    text = CONFIG.format(
        root=folder,
        layers=arguments.layers,
        dim=arguments.dim,
        hidden=4 * arguments.dim,
        batch=arguments.microbatch * arguments.rounds * arguments.processes,
        microbatch=arguments.microbatch,
        sequence=arguments.sequence,
    )
    return parse(text, source="benchmark").config


def work(rank: int, place: dict[str, Any], arguments: dict[str, Any], folder: str, results: Any) -> None:
    torch.set_num_threads(1)
    config = config_of(argparse.Namespace(**arguments), folder)
    context = WorkerContext(
        generation=1,
        rank=rank,
        world=place["world"],
        local_rank=rank,
        store=dist.TCPStore("127.0.0.1", place["port"], is_master=False),
        run=Storage(place["run"]),
        fence=place["fence"],
        timeout=timedelta(seconds=120),
    )
    data = Dataset.open(Storage(config.storage), place["key"])
    layout = Layout(dp_shard=place["world"])
    split = data.split("train")
    order = split.order(policy_of(config))
    with (
        open_session(context, config=config, layout=layout, vocab=data.manifest.vocab, device="cpu") as session,
        Recorder(context, config=config, session=session) as recorder,
        Loader(
            split, order=order, microbatch=config.training.microbatch, dp_rank=rank, dp_size=layout.dp, position=0
        ) as loader,
        collected(every=1000),
    ):
        watch, done = Watch(config.training.guard), 0

        def ours() -> None:
            nonlocal done
            began = time.perf_counter()
            batches = next(loader)
            loaded = time.perf_counter()
            result = session.step(batches, step=done, watch=watch)
            recorder.step(
                done,
                batches,
                samples=config.training.global_batch,
                result=result,
                seconds=time.perf_counter() - began,
                data_seconds=loaded - began,
                save_seconds=0.0,
            )
            done += 1

        bare = bare_step(config, vocab=data.manifest.vocab, world=place["world"])
        ratios = []
        for pair in range(_WARM_UP + arguments["pairs"]):
            # Whoever comes first in a pair comes second in the next.
            first, second = (ours, bare) if pair % 2 else (bare, ours)
            spent = {first: turn(first), second: turn(second)}
            if pair >= _WARM_UP:
                ratios.append(spent[bare] / spent[ours])
        if rank == 0:
            results.put(ratios)


def turn(step: Callable[[], None]) -> float:
    dist.barrier()
    began = time.perf_counter()
    for _ in range(_TURN):
        step()
    return time.perf_counter() - began


def bare_step(config: RunConfig, *, vocab: int, world: int) -> Callable[[], None]:
    """A training loop's step as a tutorial has it."""
    training = config.training
    model = Transformer(config.model.shape(vocab))
    if world > 1:
        for layer in model.layers.values():
            fully_shard(layer)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    rounds = training.global_batch // training.microbatch // world
    tokens = torch.randint(vocab, (16, training.microbatch, training.sequence + 1))
    positions = torch.arange(training.sequence).expand(training.microbatch, -1)
    count = 0

    def step() -> None:
        nonlocal count
        for _ in range(rounds):
            batch = tokens[count % len(tokens)]
            count += 1
            logits = model(batch[:, :-1], positions)
            loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()) / rounds
            loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()

    return step


def told(ratios: list[float], arguments: argparse.Namespace) -> str:
    logarithms = [math.log(ratio) for ratio in ratios]
    mean, error = statistics.fmean(logarithms), statistics.stdev(logarithms) / math.sqrt(len(ratios))
    low, high = math.exp(mean - 1.96 * error), math.exp(mean + 1.96 * error)
    return (
        f"{arguments.processes} processes, {os.cpu_count()} cores, {len(ratios)} pairs of {_TURN} steps: "
        f"{math.exp(mean):.3f} times as fast as the bare loop (95 %: {low:.3f} to {high:.3f})"
    )


if __name__ == "__main__":
    main()
