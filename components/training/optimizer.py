"""The optimizer, its schedule, and clipping across ranks.

Called by `session`. The learning rate is a function of the step alone, so nothing of it is kept in a checkpoint.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from shardline.components.common.config.training_schema import Optimizer as OptimizerConfig
from shardline.components.common.config.training_schema import Training
from shardline.components.common.errors import UserError
from shardline.components.training.classes import OPTIMIZER_KEY, optimizer_class


class AdamW(torch.optim.AdamW):
    """arXiv:1711.05101, as a `classes.Optimizer`."""

    moments = ("exp_avg", "exp_avg_sq")


def build_optimizer(named: Iterable[tuple[str, nn.Parameter]], *, config: OptimizerConfig) -> torch.optim.Optimizer:
    """The optimizer that the config names; weight decay acts on matrices alone.

    Raises:
        UserError: it is one of the user's own, and there is none or it is not to be used.
    """
    parameters = list(named)
    groups = [
        {"params": [p for _, p in parameters if p.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [p for _, p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    beta1, beta2 = config.betas
    kind: Any = AdamW if config.name == "adamw" else optimizer_class(config.name)
    optimizer: torch.optim.Optimizer = kind(
        [group for group in groups if group["params"]], lr=config.lr, betas=(beta1, beta2), eps=config.eps
    )
    for _, parameter in parameters:
        # What AdamW would make on its first step, made now so that there is something to load a checkpoint into.
        optimizer.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32),
            **{name: torch.zeros_like(parameter, requires_grad=False) for name in moments_of(optimizer)},
        }
    return optimizer


def moments_of(optimizer: torch.optim.Optimizer) -> tuple[str, ...]:
    """What of a parameter's state goes into a checkpoint."""
    moments: tuple[str, ...] = optimizer.moments  # type: ignore[attr-defined]
    return moments


def check_state(optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer that after an update keeps what a checkpoint would not: it could not go on from one.

    Raises:
        UserError: naming it.
    """
    kept = {"step", *moments_of(optimizer)}
    for state in optimizer.state.values():
        if state.keys() != kept:
            raise UserError(
                f"{type(optimizer).__name__} keeps {', '.join(sorted(state.keys() ^ kept))} otherwise than its "
                f"`moments` say",
                where=OPTIMIZER_KEY,
                hint="list each tensor that the next update needs, and leave those that are there",
            )


def set_updates(optimizer: torch.optim.Optimizer, updates: int) -> None:
    """Say how many updates the moments stand for: AdamW corrects its bias by it."""
    for state in optimizer.state.values():
        state["step"].fill_(float(updates))


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = value


def learning_rate(step: int, *, training: Training) -> float:
    """The learning rate of optimizer step `step`, from 0: linear warm-up, then cosine decay (arXiv:1608.03983)."""
    schedule, peak = training.schedule, training.optimizer.lr
    if step < schedule.warmup:
        return peak * (step + 1) / schedule.warmup
    if schedule.decay == "constant":
        return peak
    end = schedule.decay_steps or training.steps
    share = min(1.0, (step - schedule.warmup) / max(1, end - 1 - schedule.warmup))
    return peak * (schedule.floor + (1 - schedule.floor) * 0.5 * (1 + math.cos(math.pi * share)))


def settle_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Lay each gradient out as its parameter is.

    DTensor leaves it as the last operation gave it: that of a norm, for example, as terms of a sum over the ranks that
    have a share of the tokens each.
    """
    for parameter in parameters:
        gradient = parameter.grad
        if isinstance(parameter, DTensor) and isinstance(gradient, DTensor):
            parameter.grad = gradient.redistribute(placements=parameter.placements)


def clip_gradients(
    parameters: list[nn.Parameter],
    *,
    limit: float | None,
    group: dist.ProcessGroup | None = None,
    copies: Collection[Tensor] = (),
) -> Tensor:
    """Scale the gradients of the whole model so that their common norm is at most `limit`.

    Args:
        group: the ranks that hold a part of the model; all there are, unless given.
        copies: those of `parameters` that another stage counts: scaled with the others, and no part of the norm.

    Returns:
        The norm before, a scalar that is the same on every rank.
    """
    copied = {id(parameter) for parameter in copies}
    by_ranks: dict[int, list[Tensor]] = defaultdict(list)
    for parameter in parameters:
        if parameter.grad is not None and id(parameter) not in copied:
            gradient, ranks = _local_gradient(parameter)
            by_ranks[ranks].append(gradient)
    # What several ranks hold is counted in parts that add up to one.
    squared = [torch.nn.utils.get_total_norm(part) ** 2 / ranks for ranks, part in by_ranks.items()]
    total = torch.stack(squared).sum()
    dist.all_reduce(total, group=group)
    norm = total.sqrt()
    if limit is not None:
        torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm)
    return norm


def _local_gradient(parameter: nn.Parameter) -> tuple[Tensor, int]:
    """This rank's part of a parameter's gradient, and how many ranks hold the same part."""
    gradient = parameter.grad
    if not isinstance(gradient, DTensor):
        return gradient, 1  # type: ignore[return-value]
    sizes = zip(gradient.placements, gradient.device_mesh.shape, strict=True)
    return gradient.to_local(), math.prod(size for placement, size in sizes if placement.is_replicate())
