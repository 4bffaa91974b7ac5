"""Pipeline parallelism by torch's schedules: an `Executor`.

Called by `executor`. It relies on private parts of torch 2.13 in one place, which says so.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import Schedule1F1B, ScheduleInterleaved1F1B

from shardline.components.common.errors import UserError
from shardline.components.training.executor import Inputs, summed_loss
from shardline.components.training.parallel import Parts


class Pipelined:
    """Pipeline parallelism by torch's schedules."""

    def __init__(self, parts: Parts, *, rounds: int, document_attention: bool) -> None:
        layout = parts.layout
        if rounds < layout.stages:
            raise UserError(
                f"the {layout.stages} stages of a pipeline need at least {layout.stages} microbatches on each "
                f"data-parallel rank; there are {rounds}",
                where="training.layout.pp",
                hint="raise training.global_batch, or lower training.microbatch or pp",
            )
        stages: list[Any] = [
            PipelineStage(module, index, layout.stages, parts.device, group=parts.pp_group)
            for index, module in parts.stages.items()
        ]
        self._first = 0 in parts.stages
        self._last = parts.has_last_stage
        self._document_attention = document_attention
        self._tokens = 1
        self._schedule: Schedule1F1B | ScheduleInterleaved1F1B
        if layout.schedule == "Interleaved1F1B":
            self._schedule = ScheduleInterleaved1F1B(stages, rounds, loss_fn=self._loss, scale_grads=False)
        else:
            self._schedule = Schedule1F1B(stages[0], rounds, loss_fn=self._loss, scale_grads=False)

    def train(self, inputs: Inputs, *, tokens: int) -> Tensor:
        self._tokens = tokens
        return self._run(inputs)

    @torch.no_grad()
    def evaluate(self, inputs: Inputs) -> Tensor:
        self._tokens = 1
        # What the schedule's own `eval` does, which would also gather every microbatch's logits.
        before, self._schedule._has_backward = self._schedule._has_backward, False
        try:
            return self._run(inputs)
        finally:
            self._schedule._has_backward = before

    def _run(self, inputs: Inputs) -> Tensor:
        losses: list[Tensor] | None = [] if self._last else None
        every_stage: dict[str, Any] = {"positions": inputs.positions}
        if self._document_attention:
            every_stage["documents"] = inputs.documents
        self._schedule.step(
            *((inputs.tokens,) if self._first else ()),
            target=inputs.targets if self._last else None,
            losses=losses,
            return_outputs=False,
            **every_stage,
        )
        total = torch.zeros((), dtype=torch.float64, device=inputs.tokens.device)
        for loss in losses or ():
            total += loss.detach()
        return total

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return summed_loss(logits, targets) / self._tokens
