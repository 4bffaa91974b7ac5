"""A training loop as a tutorial has it, for torchrun: FSDP2, AdamW, a checkpoint by torch.save every so many steps.

Started by torchrun with a folder, the steps between checkpoints and a timeout in seconds; it has shardline's model, and
random tokens. After each step rank 0 appends a line to steps.jsonl in the folder, of the form of shardline's metrics;
`generation` counts its starts.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

from benchmarks.recovery.settings import BATCH, CONFIG, SEQUENCE, VOCAB
from shardline.components.common.config import parse
from shardline.components.training.model import Transformer

STEPS_FILE, CHECKPOINT_FILE = "steps.jsonl", "checkpoint.pt"
_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


def main(folder: Path, *, every: int, timeout: int) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout))
    rank, world = dist.get_rank(), dist.get_world_size()
    config = parse(CONFIG.format(root=folder, every=every, timeout=timeout), source="benchmark").config
    torch.manual_seed(0)
    model = Transformer(config.model.shape(VOCAB))
    for layer in model.layers.values():
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    done = load(folder / CHECKPOINT_FILE, model, optimizer)
    generation = 1 + (folder / STEPS_FILE).read_bytes().count(b"begin")
    tell = teller(folder / STEPS_FILE, generation=generation, world=world) if rank == 0 else lambda name, step: None
    tell("begin", done)
    positions = torch.arange(SEQUENCE).expand(BATCH // world, -1)
    while True:
        tokens = torch.randint(VOCAB, (BATCH // world, SEQUENCE + 1))
        logits = model(tokens[:, :-1], positions)
        F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        done += 1
        tell("train", done - 1)
        if done % every == 0:
            save(folder / CHECKPOINT_FILE, model, optimizer, done=done, rank=rank)


def teller(path: Path, *, generation: int, world: int) -> Callable[[str, int], None]:
    """Appends a line to the file at `path`, with one write: all of it is there at once."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)

    def tell(name: str, step: int) -> None:
        time = datetime.now(UTC).isoformat()
        record = {"time": time, "generation": generation, "name": name, "data": {"step": step, "world": world}}
        os.write(descriptor, json.dumps(record).encode() + b"\n")

    return tell


def save(path: Path, model: Transformer, optimizer: torch.optim.Optimizer, *, done: int, rank: int) -> None:
    weights, moments = get_state_dict(model, optimizer, options=_WHOLE)
    if rank == 0:
        torch.save({"model": weights, "optimizer": moments, "done": done}, path.with_suffix(".part"))
        os.replace(path.with_suffix(".part"), path)


def load(path: Path, model: Transformer, optimizer: torch.optim.Optimizer) -> int:
    """The steps that are done. Every rank reads the whole file, which nobody writes meanwhile."""
    if not path.exists():
        return 0
    found = torch.load(path, weights_only=True)
    set_state_dict(
        model, optimizer, model_state_dict=found["model"], optim_state_dict=found["optimizer"], options=_WHOLE
    )
    return int(found["done"])


if __name__ == "__main__":
    main(Path(sys.argv[1]), every=int(sys.argv[2]), timeout=int(sys.argv[3]))
