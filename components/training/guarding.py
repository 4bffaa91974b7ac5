"""What is done about steps that are not sound: counted, reported, or rolled back.

Called by `worker` after each optimizer step. Rank 0 tells and decides; the decision is a file in the run folder, and
takes effect in the next generation, which all ranks make room for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch.distributed as dist

from shardline.components.common.config import RunConfig
from shardline.components.common.config.training_schema import Guard
from shardline.components.common.errors import RolledBack, UserError
from shardline.components.common.workers import WorkerContext
from shardline.components.sharding import decisions
from shardline.components.sharding.dataset import Dataset
from shardline.components.sharding.inspect import Viewer
from shardline.components.sharding.order import DataPolicy, Skip
from shardline.components.training.checkpoint import catalog
from shardline.components.training.checkpoint.loading import together
from shardline.components.training.guard import Verdict
from shardline.components.training.recorder import Recorder
from shardline.components.training.session import StepResult

#: An event names so many documents, at most.
_MOST_DOCUMENTS = 200


def settings_after(roll_backs: int, config: RunConfig) -> Guard:
    """The rule of a run that has rolled back so often: once it is as often as it may, spikes are reported."""
    guard = config.training.guard
    if guard.spike == "roll-back" and roll_backs >= guard.roll_backs:
        return guard.model_copy(update={"spike": "report"})
    return guard


class Guarding:
    """The guard of one worker in one generation."""

    def __init__(
        self, context: WorkerContext, *, config: RunConfig, data: Dataset, policy: DataPolicy, recorder: Recorder
    ) -> None:
        self._context = context
        self._settings = config.training.guard
        self._data, self._policy = data, policy
        self._recorder = recorder
        self._begin = config.training.first_step
        self._in_a_row = 0

    def after_step(self, step: int, result: StepResult, *, settle: Callable[[], None]) -> None:
        """Take note of how optimizer step `step` went.

        Args:
            settle: ends what is being written into the run folder; called before a roll-back.

        Raises:
            UserError: training is to stop, or too many updates in a row were left out.
            RolledBack: the next generation goes on from an earlier checkpoint.
        """
        if result.verdict is not Verdict.NOT_FINITE:
            self._in_a_row = 0
            if result.verdict is Verdict.SPIKE and result.updated:
                self._tell("loss.spiked", result, step=step, first=step)
            elif result.verdict is Verdict.SPIKE:
                settle()
                self._roll_back(step, result)
            return
        self._in_a_row += 1
        self._tell("update.skipped", result, step=step, first=step)
        if self._settings.not_finite == "stop" or self._in_a_row > self._settings.most_skipped:
            raise UserError(
                f"optimizer step {step} has a loss of {result.loss} and a gradient norm of {result.gradient_norm}"
                + (f", as have the {self._in_a_row - 1} before it" if self._in_a_row > 1 else ""),
                where="training",
                hint="lower training.optimizer.lr or lengthen training.schedule.warmup, under another run name",
            )

    def _roll_back(self, step: int, result: StepResult) -> NoReturn:
        """Have the samples of the spike at `step` passed over from an earlier checkpoint on. Collective."""
        first: int = together(lambda: self._first(step), rank=self._context.rank)
        skip = Skip(step=first, batches=step - first + 1)
        if self._context.rank == 0:
            self._context.lease.check()
            for record in catalog.committed(self._context.run):
                if record.step > first:
                    catalog.put_aside(
                        self._context.run, record.folder, generation=self._context.generation, mark="abandoned"
                    )
            about = self._tell("training.rolled-back", result, step=step, first=first)
            decisions.decide(self._context.run, skip, about=about)
            self._recorder.flush()
        # Whoever left before would have the others ended in the midst of it.
        dist.barrier()
        raise RolledBack(
            f"the loss of optimizer step {step} jumped to {result.loss:.4g}: "
            f"the samples of steps {first} to {step} are passed over"
        )

    def _first(self, step: int) -> int:
        """The first step to pass over: `pass_over` before the spike, or as far back as a checkpoint reaches.

        Further back, no checkpoint would be left to go on from. Where none was made yet, training begins anew.
        """
        first = max(self._begin, step - self._settings.pass_over)
        saved = [record.step for record in catalog.committed(self._context.run)]
        return max(first, min(saved)) if saved else first

    def _tell(self, name: str, result: StepResult, *, step: int, first: int) -> dict[str, Any]:
        """The event of what went wrong at `step`, with the documents of the steps from `first` on."""
        data: dict[str, Any] = {"step": step, "loss": result.loss, "gradient_norm": result.gradient_norm}
        if self._recorder.events:
            data = {**data, "from_step": first, "documents": self._documents(first, step)}
            self._recorder.events.emit(name, data, reason=result.verdict.value)
        return data

    def _documents(self, first: int, last: int) -> list[dict[str, Any]]:
        viewer = Viewer(self._data)
        found = [
            {"step": step, "source": sample["source"], "file": document["file"], "at": document["at"]}
            for step in range(first, last + 1)
            for sample in viewer.step(self._policy, step)
            for document in sample["documents"]
        ]
        return found[:_MOST_DOCUMENTS]
