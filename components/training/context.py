"""Context parallelism: the tokens of a sample on several ranks.

Called by `parallel`, which puts `SharedSamples` behind the model's attention, and by `executor`, which gives each rank
its tokens. A sample is cut into 2 x cp chunks; rank r has chunks r and 2cp-1-r, one from either end, so that causal
attention is the same work on every rank. Keys and values of all tokens are gathered in each layer; each chunk attends
to those up to its own end. This is the form of Llama 3's training (arXiv:2407.21783, section 3.3.2): it takes any mask,
and with grouped heads keys and values are small beside the queries.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from shardline.components.training.attention import WholeSamples, document_mask


def share(x: Tensor, *, rank: int, size: int) -> Tensor:
    """The tokens of context-parallel rank `rank` of `size`.

    Args:
        x: [batch, length, ...] of whole samples; 2 x `size` divides the length.

    Returns:
        [batch, length / size, ...]: the rank's earlier chunk, then its later one.
    """
    if size == 1:
        return x
    chunks = x.chunk(2 * size, dim=1)
    return torch.cat((chunks[rank], chunks[2 * size - 1 - rank]), dim=1)


class SharedSamples:
    """Attention over samples that the ranks of `group` share: an `Attend`. Every call is collective over them."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._size = dist.get_world_size(group)
        self._rank = dist.get_rank(group)
        self._whole = WholeSamples()

    def mask(self, documents: Tensor | None) -> Tensor | None:
        """bool[batch, 1, length / cp, length]: which tokens of the whole sample each token here sees."""
        if documents is None:
            return None
        return share(document_mask(documents).transpose(1, 2), rank=self._rank, size=self._size).transpose(1, 2)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        keys, values = _Gathered.apply(torch.stack((key, value)), self._group)  # type: ignore[no-untyped-call]
        length = query.shape[2] // 2
        places = (self._rank, 2 * self._size - 1 - self._rank)
        attended = []
        for number, (chunk, place) in enumerate(zip(query.chunk(2, dim=2), places, strict=True)):
            end = (place + 1) * length
            if mask is None:
                seen = torch.ones(length, end, dtype=torch.bool, device=query.device).tril(end - length)
            else:
                seen = mask[:, :, number * length : (number + 1) * length, :end]
            attended.append(self._whole(chunk, keys[:, :, :end], values[:, :, :end], seen))
        return torch.cat(attended, dim=2)


class _Gathered(torch.autograd.Function):
    """[..., length / cp, width] of every rank, as [..., length, width] in the order of the sample; gradients add up."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        size = dist.get_world_size(group)
        parts = [torch.empty_like(x) for _ in range(size)]
        dist.all_gather(parts, x.contiguous(), group=group)
        halves = [part.chunk(2, dim=-2) for part in parts]
        return torch.cat([half[0] for half in halves] + [half[1] for half in reversed(halves)], dim=-2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        size = dist.get_world_size(ctx.group)
        chunks = gradient.chunk(2 * size, dim=-2)
        parts = torch.stack([torch.cat((chunks[rank], chunks[-1 - rank]), dim=-2) for rank in range(size)])
        own = torch.empty_like(parts[0])
        dist.reduce_scatter_single(own.view(-1), parts.view(-1), group=ctx.group)
        return own, None
