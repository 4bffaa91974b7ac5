"""Training whose workers die at given optimizer steps, as with a fault that comes again."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import Any

from shardline.components.common.workers import WorkerContext
from shardline.components.training import worker
from shardline.components.training.saves import Saves


def train(context: WorkerContext, *, deaths: Sequence[int], first: int, rank: int, **arguments: Any) -> None:
    """`worker.train`, but `rank` is killed after one optimizer step of each generation, before it is saved.

    Args:
        deaths: that step, of the generation `first` and of those after it; the ones beyond them live.
    """
    place = context.generation - first
    if context.rank != rank or not 0 <= place < len(deaths):
        worker.train(context, **arguments)
        return
    after_step = Saves.after_step

    def dying(self: Saves, step: int, **options: Any) -> float:
        if step == deaths[place]:
            os.kill(os.getpid(), signal.SIGKILL)
        return after_step(self, step, **options)

    Saves.after_step = dying  # type: ignore[method-assign]
    worker.train(context, **arguments)
