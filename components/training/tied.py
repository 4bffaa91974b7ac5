"""Tied embeddings under a pipeline: the first and the last stage each hold the parameter, and both must stay one.

Called by `session`, together on all ranks of a pipeline. Both copies begin equal, by their common name. Their gradients
are summed, which gives the same on both sides to the last bit, so every update leaves them equal.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from shardline.components.training.dtensors import local_of
from shardline.components.training.model import Transformer
from shardline.components.training.parallel import Parts


class Tied:
    """The copies of the embedding that this rank holds; none when the model's embeddings are apart.

    Attributes:
        copies: the last stage's, where that isn't the first stage too: what the first stage's stands for in the
            gradients' norm.
        pairs: the first stage's with its copy, where both are here: schedules may put both ends on one rank.
    """

    def __init__(self, parts: Parts) -> None:
        ends = sorted({0, parts.layout.stages - 1})
        held = {
            index: stage.embedding.weight
            for index in ends
            if isinstance(stage := parts.stages.get(index), Transformer)
            and stage.shape.tied
            and stage.embedding is not None
        }
        self._held = list(held.values())
        self.copies: list[Tensor] = [weight for index, weight in held.items() if index != 0]
        self.pairs: list[tuple[Tensor, Tensor]] = [(held[0], copy) for copy in self.copies if 0 in held]
        self._group = parts.pp_group
        others = {
            rank
            for rank in range(parts.layout.pp)
            if rank != parts.place.pp and not set(ends).isdisjoint(parts.layout.stages_of(rank))
        }
        #: The pipeline rank that has the other copy.
        self._peer = min(others) if held and others else None

    def sum_gradients(self) -> None:
        """Give every copy the sum of the copies' gradients. Collective over the ranks that hold them."""
        gradients = [local_of(weight.grad) for weight in self._held if weight.grad is not None]
        if self.pairs:
            gradients[0] += gradients[1]
            gradients[1].copy_(gradients[0])
        elif self._peer is not None:
            gradients[0] += _exchanged(gradients[0], peer=self._peer, group=self._group)


def _exchanged(mine: Tensor, *, peer: int, group: dist.ProcessGroup) -> Tensor:
    """The other rank's tensor, for this one's."""
    mine = mine.contiguous()
    theirs = torch.empty_like(mine)
    sent = dist.P2POp(dist.isend, mine, group=group, group_peer=peer)
    received = dist.P2POp(dist.irecv, theirs, group=group, group_peer=peer)
    for work in dist.batch_isend_irecv([sent, received]):
        work.wait()
    return theirs
