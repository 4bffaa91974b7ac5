"""Training whose loss goes wrong on some samples, whatever the layout: as a poisonous document would have it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from shardline.components.common.workers import WorkerContext
from shardline.components.sharding.batch import Batch
from shardline.components.training import session, worker


def train(context: WorkerContext, *, poisoned: Sequence[int], factor: float, **arguments: Any) -> None:
    """`worker.train`, but the loss of a step with a sample in `poisoned`, by global index, is `factor` times it."""
    step, executor_for = session.Session.step, session.executor_for
    wrong = False

    def noticing(self: session.Session, batches: Sequence[Batch], **options: Any) -> session.StepResult:
        nonlocal wrong
        wrong = any(int(index) in poisoned for batch in batches for index in batch.index)
        return step(self, batches, **options)

    def poisoning(*parameters: Any, **options: Any) -> Any:
        executor = executor_for(*parameters, **options)
        original = executor.train

        def trained(inputs: Any, *, weight: float) -> Tensor:
            loss: Tensor = original(inputs, weight=weight)
            return loss * factor if wrong else loss

        executor.train = trained  # type: ignore[method-assign]
        return executor

    session.Session.step, session.executor_for = noticing, poisoning  # type: ignore[method-assign, assignment]
    try:
        worker.train(context, **arguments)
    finally:
        session.Session.step, session.executor_for = step, executor_for  # type: ignore[method-assign]
