"""Forward and backward over one optimizer step's microbatches, with or without a pipeline.

Called by `session`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from shardline.components.sharding.batch import Batch
from shardline.components.training.context import share
from shardline.components.training.loss import IGNORED, summed_loss
from shardline.components.training.parallel import Parts


@dataclass(frozen=True)
class Inputs:
    """Microbatches as tensors on the device, stacked: `rows` x tokens."""

    tokens: Tensor
    positions: Tensor
    documents: Tensor
    targets: Tensor
    weights: Tensor

    @classmethod
    def of(cls, batches: Sequence[Batch], *, device: torch.device, weighed: bool = True) -> Inputs:
        """`batches` on the device; without `weighed` each target that counts, counts once."""

        def stacked(name: str) -> Tensor:
            return torch.cat([torch.from_numpy(getattr(batch, name)) for batch in batches])

        mask = stacked("loss_mask")
        targets = stacked("targets").masked_fill(~mask, IGNORED)
        weights = stacked("loss_weights") if weighed else mask.float()
        found = (stacked("tokens"), stacked("positions"), stacked("documents"), targets, weights)
        return cls(*(tensor.to(device) for tensor in found))

    def of_rank(self, rank: int, size: int) -> Inputs:
        """The tokens of context-parallel rank `rank` of `size`; `documents` stays whole."""
        tokens, positions, targets, weights = (
            share(x, rank=rank, size=size) for x in (self.tokens, self.positions, self.targets, self.weights)
        )
        return Inputs(tokens, positions, self.documents, targets, weights)


class Executor(Protocol):
    """Runs the model. Both methods are collective over the ranks of a replica."""

    def train(self, inputs: Inputs, *, weight: float) -> Tensor:
        """Add the gradients of the loss over `inputs`; `weight` is the sum of all weights in the global batch.

        Returns:
            The loss of this rank's tokens: a float64 scalar, the same on its tensor-parallel peers, zero without the
            last stage.
        """
        ...

    def evaluate(self, inputs: Inputs) -> Tensor:
        """The summed loss over `inputs` in nats: as `train`, undivided and without gradients."""
        ...


def executor_for(parts: Parts, *, rounds: int, document_attention: bool) -> Executor:
    """The executor of a layout, for `rounds` microbatches a step."""
    if parts.layout.pp == 1:
        return Accumulating(parts, rounds=rounds, document_attention=document_attention)
    # Imported where it is used: torch's pipelining brings in its compiler, which takes seconds.
    from shardline.components.training.pipelined import Pipelined

    return Pipelined(parts, rounds=rounds, document_attention=document_attention)


class Accumulating:
    """No pipeline: microbatches one after the other, gradients reduced with the last one."""

    def __init__(self, parts: Parts, *, rounds: int, document_attention: bool) -> None:
        self._model = parts.stages[0]
        self._tp_group = parts.tp_group
        self._rounds = rounds
        self._document_attention = document_attention

    def train(self, inputs: Inputs, *, weight: float) -> Tensor:
        total = torch.zeros((), dtype=torch.float64, device=inputs.tokens.device)
        for index, part in enumerate(self._split(inputs)):
            if isinstance(self._model, FSDPModule):
                last = index == self._rounds - 1
                self._model.set_requires_gradient_sync(last)
                self._model.set_is_last_backward(last)
            loss = self._loss(part) / weight
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        return total

    @torch.no_grad()
    def evaluate(self, inputs: Inputs) -> Tensor:
        total = torch.zeros((), dtype=torch.float64, device=inputs.tokens.device)
        for part in self._split(inputs):
            total += self._loss(part)
        return total

    def _loss(self, part: Inputs) -> Tensor:
        documents = part.documents if self._document_attention else None
        logits = self._model(part.tokens, part.positions, documents)
        return summed_loss(logits, part.targets, part.weights, group=self._tp_group)

    def _split(self, inputs: Inputs) -> list[Inputs]:
        fields = (inputs.tokens, inputs.positions, inputs.documents, inputs.targets, inputs.weights)
        return [Inputs(*part) for part in zip(*(field.chunk(self._rounds) for field in fields), strict=True)]
