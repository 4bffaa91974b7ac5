"""The evaluation worker: a checkpoint's summed loss over the held-out blocks, under any layout.

Called by an agent in each process of a generation. It changes nothing but a file of totals that rank 0 writes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from shardline.components.common.events import EventLog
from shardline.components.common.runfolder import read_config, write_json
from shardline.components.common.status import StatusWriter
from shardline.components.common.storage import Storage
from shardline.components.common.workers import WorkerContext
from shardline.components.planning.layout import Layout
from shardline.components.sharding.dataset import Dataset
from shardline.components.training.checkpoint import loading
from shardline.components.training.session import open_session


def evaluate(context: WorkerContext, *, dataset: str, layout: dict[str, Any], device: str, output: str) -> None:
    """Evaluate the newest sound checkpoint as rank `context.rank`.

    Args:
        dataset: the data set's key under the storage root.
        layout: a `Layout` as JSON, the same on every rank.
        device: "cpu" or "cuda".
        output: where in the run folder rank 0 puts `nats`, `tokens` and `bytes`, with the `step` and `generation` of
            the checkpoint.

    Raises:
        DamagedData: no checkpoint is sound, or a shard is not what was written.
    """
    config = read_config(context.run)
    data = Dataset.open(Storage(config.storage), dataset, cache=config.resources.cache)
    held_out = data.split("held_out")
    with (
        _rank_zero_events(context) as events,
        open_session(
            context, config=config, layout=Layout.from_json(layout), vocab=data.manifest.vocab, device=device
        ) as session,
    ):
        record = loading.newest_sound(context, events=events)
        if record is None:
            raise RuntimeError("the step starts no workers without a checkpoint")
        session.load(record)
        with _reporting(context, held_out.blocks) as report:
            totals = session.evaluate(held_out, on_blocks=report)
    if context.rank == 0:
        context.lease.check()
        write_json(context.run, output, {**asdict(totals), "step": record.step, "generation": record.generation})


@contextlib.contextmanager
def _reporting(context: WorkerContext, total: int) -> Iterator[Callable[[int], None] | None]:
    if context.rank != 0:
        yield None
        return
    with StatusWriter(context.run, phase="evaluate", generation=context.generation, lease=context.lease) as status:

        def report(done: int) -> None:
            status.set(step=done, total=total)

        report(0)
        yield report


@contextlib.contextmanager
def _rank_zero_events(context: WorkerContext) -> Iterator[EventLog | None]:
    if context.rank != 0:
        yield None
        return
    with EventLog(context.run, generation=context.generation, writer="evaluate-worker") as events:
        yield events
