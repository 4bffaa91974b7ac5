"""A worker that computes in float8 on a CPU, emulated: an entry for `runs.train`."""

from __future__ import annotations

from functools import partial
from typing import Any

from shardline.components.common.workers import WorkerContext
from shardline.components.training import float8, worker


def train(context: WorkerContext, **arguments: Any) -> None:
    check, use = float8.check, float8.use_float8
    float8.check = lambda device: None
    float8.use_float8 = partial(use, emulated=True)  # type: ignore[assignment]
    try:
        worker.train(context, **arguments)
    finally:
        float8.check, float8.use_float8 = check, use
