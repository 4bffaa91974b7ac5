"""Training that is interrupted by an evaluation before each of its first steps: what one does to the other."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from shardline.components.common.runfolder import read_config
from shardline.components.common.storage import Storage
from shardline.components.common.workers import WorkerContext
from shardline.components.sharding.dataset import Dataset
from shardline.components.training import session, worker

RESULTS = "evaluations.json"
_EVALUATED = 3


def train(context: WorkerContext, *, dataset: str, **arguments: Any) -> None:
    """As the worker's, and rank 0 writes what each evaluation found into the run folder."""
    held_out = Dataset.open(Storage(read_config(context.run).storage), dataset).split("held_out")
    original, found = session.Session.step, []

    def step(self: Any, batches: Any, *, step: int, **options: Any) -> Any:
        if step < _EVALUATED:
            found.append(asdict(self.evaluate(held_out)))
        return original(self, batches, step=step, **options)

    session.Session.step = step  # type: ignore[method-assign]
    try:
        worker.train(context, dataset=dataset, **arguments)
    finally:
        session.Session.step = original  # type: ignore[method-assign]
    if context.rank == 0:
        context.run.write(RESULTS, json.dumps(found).encode())
