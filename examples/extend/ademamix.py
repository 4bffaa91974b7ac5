"""An optimizer of one's own: AdamW with a second, slower mean of the gradients (AdEMAMix, arXiv:2409.03137).

Without the paper's warm-up of `ALPHA` and `BETA3`, which long runs want. The constants are part of what the name in the
config stands for; a class with others gets another name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

ALPHA = 2.0
BETA3 = 0.999


class AdEMAMix(torch.optim.Optimizer):
    #: What a checkpoint keeps of each parameter, beside the number of updates.
    moments = ("fast", "slow", "square")

    def __init__(self, groups: Iterable[dict[str, Any]], *, lr: float, betas: tuple[float, float], eps: float) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is None:
                    continue
                state = self.state[parameter]
                state["step"] += 1
                updates = float(state["step"])
                state["fast"].lerp_(gradient, 1 - beta1)
                state["slow"].lerp_(gradient, 1 - BETA3)
                state["square"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
                mean = state["fast"] / (1 - beta1**updates) + ALPHA * state["slow"]
                size = (state["square"] / (1 - beta2**updates)).sqrt() + group["eps"]
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.addcdiv_(mean, size, value=-group["lr"])
