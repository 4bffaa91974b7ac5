"""The loss: cross entropy summed over the targets that count, with the vocabulary on one rank or on several.

Called by the executors. Sums, not means: microbatches, ranks and masked ones simply add up, and the executors divide by
the sum of the weights in the whole global batch.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

#: A target that is passed over: padding, and all of an absent microbatch.
IGNORED = -100


def summed_loss(logits: Tensor, targets: Tensor, weights: Tensor, *, group: dist.ProcessGroup) -> Tensor:
    """The summed loss in nats, each target's times its weight, in at least fp32; the same on every rank of `group`.

    Args:
        logits: [batch, length, vocab / ranks of the group]: ranks have equal slices of the vocabulary, in their order.
        targets: int64[batch, length] in the whole vocabulary, or IGNORED.
        weights: [batch, length], what each target counts.
    """
    exact = (logits if logits.dtype == torch.float64 else logits.float()).flatten(0, 1)
    if dist.get_world_size(group) == 1:
        losses = F.cross_entropy(exact, targets.flatten(), ignore_index=IGNORED, reduction="none")
    else:
        losses = _SharedCrossEntropy.apply(exact, targets.flatten(), group)  # type: ignore[no-untyped-call]
    return (losses * weights.flatten().to(losses.dtype)).sum()


class _SharedCrossEntropy(torch.autograd.Function):
    """Each target's cross entropy over a shared vocabulary, without gathering logits (arXiv:1909.08053, section 3)."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, group: dist.ProcessGroup) -> Tensor:
        highest = logits.max(dim=1).values
        dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=group)
        shifted = logits - highest.unsqueeze(1)
        weights = shifted.exp()
        place = targets - dist.get_rank(group) * logits.shape[1]
        here = (place >= 0) & (place < logits.shape[1])
        place = place.masked_fill(~here, 0).unsqueeze(1)
        target = shifted.gather(1, place).squeeze(1).masked_fill(~here, 0)
        sums = torch.stack((weights.sum(dim=1), target))
        dist.all_reduce(sums, group=group)
        counted = targets != IGNORED
        ctx.save_for_backward(weights.div_(sums[0].unsqueeze(1)), place, here, counted)
        return (sums[0].log() - sums[1]).masked_fill(~counted, 0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        probabilities, place, here, counted = ctx.saved_tensors
        wanted = here.unsqueeze(1).to(probabilities.dtype)
        out = probabilities.scatter_add(1, place, -wanted)
        return out * (counted * gradient).unsqueeze(1), None, None
