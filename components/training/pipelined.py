"""Pipeline parallelism by torch's schedules: an `Executor`.

Called by `executor`. It relies on private parts of torch 2.13 in one place, `_forward_only`, which says so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class

from shardline.components.common.config.schedules import microbatches_problem
from shardline.components.common.errors import UserError
from shardline.components.training.executor import Inputs
from shardline.components.training.loss import summed_loss
from shardline.components.training.parallel import Parts

#: What a forward pass alone consists of, among a schedule's actions.
_FORWARD = {"FORWARD", "SEND_F", "RECV_F", "UNSHARD", "RESHARD"}


class Pipelined:
    """Pipeline parallelism by torch's schedules."""

    def __init__(self, parts: Parts, *, rounds: int, document_attention: bool) -> None:
        layout = parts.layout
        problem = microbatches_problem(layout.schedule, pp=layout.pp, microbatches=rounds)
        if problem:
            raise UserError(
                problem,
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
        self._tp_group = parts.tp_group
        self._weight = 1.0
        kind: Any = get_schedule_class(layout.schedule)
        single = issubclass(kind, PipelineScheduleSingle)
        self._schedule = kind(stages[0] if single else stages, rounds, loss_fn=self._loss, scale_grads=False)

    def train(self, inputs: Inputs, *, weight: float) -> Tensor:
        self._weight = weight
        return self._run(inputs)

    @torch.no_grad()
    def evaluate(self, inputs: Inputs) -> Tensor:
        self._weight = 1.0
        with _forward_only(self._schedule):
            return self._run(inputs)

    def _run(self, inputs: Inputs) -> Tensor:
        losses: list[Tensor] | None = [] if self._last else None
        every_stage: dict[str, Any] = {"positions": inputs.positions}
        if self._document_attention:
            every_stage["documents"] = inputs.documents
        self._schedule.step(
            *((inputs.tokens,) if self._first else ()),
            target=_packed(inputs) if self._last else None,
            losses=losses,
            return_outputs=False,
            **every_stage,
        )
        total = torch.zeros((), dtype=torch.float64, device=inputs.tokens.device)
        for loss in losses or ():
            total += loss.detach()
        return total

    def _loss(self, logits: Tensor, packed: Tensor) -> Tensor:
        return summed_loss(logits, *_unpacked(packed), group=self._tp_group) / self._weight


def _packed(inputs: Inputs) -> Tensor:
    """int64[rows, 2, tokens], targets and the bits of their weights: a schedule splits one tensor, and no pair."""
    return torch.stack((inputs.targets, inputs.weights.double().view(torch.int64)), dim=1)


def _unpacked(packed: Tensor) -> tuple[Tensor, Tensor]:
    return packed[:, 0], packed[:, 1].view(torch.float64)


@contextlib.contextmanager
def _forward_only(schedule: Any) -> Iterator[None]:
    """Let `schedule` run forward passes alone.

    Its own `eval` also gathers every microbatch's logits, and stops at the first backward action of a V-shaped
    schedule, whose neighbouring stages on one rank hand gradients over without asking whether there are any.
    """
    before, orders = schedule._has_backward, getattr(schedule, "pipeline_order_with_comms", None)
    schedule._has_backward = False
    if orders is not None:
        schedule.pipeline_order_with_comms = {
            rank: [leaf for action in actions for leaf in leaves(action) if leaf.computation_type.name in _FORWARD]
            for rank, actions in orders.items()
        }
    try:
        yield
    finally:
        schedule._has_backward = before
        if orders is not None:
            schedule.pipeline_order_with_comms = orders


def leaves(action: Any) -> Iterator[Any]:
    """The actions that a combined one, of a forward and a backward pass, consists of."""
    if not action.sub_actions:
        yield action
    for part in action.sub_actions or ():
        yield from leaves(part)
