"""Recomputation keeps less and changes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from shardline.components.common.config.presets import PRESETS
from shardline.components.training.initial import initialise
from shardline.components.training.model import Transformer

SHAPE = replace(PRESETS["tiny"], vocab=300, layers=2)


def trained(recompute: str) -> tuple[list[Tensor], int]:
    """The gradients, and the bytes that the forward pass kept for the backward pass."""
    model = Transformer(SHAPE, recompute=recompute).double()
    initialise(model, seed=0)
    kept: dict[int, int] = {}

    def keep(x: Tensor) -> Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    tokens = torch.randint(300, (2, 64), generator=torch.Generator().manual_seed(1))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        loss = model(tokens, torch.arange(64).expand(2, 64)).logsumexp(-1).sum()
    loss.backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None], sum(kept.values())


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_gradients_are_the_same(recompute: str) -> None:
    expected, found = trained("none")[0], trained(recompute)[0]
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


def test_full_keeps_less_than_nothing_recomputed() -> None:
    assert trained("full")[1] < trained("none")[1]
