from __future__ import annotations

import pytest
import torch
from torch import Tensor

from shardline.components.common.config.presets import ModelShape
from shardline.components.evaluation.generate import generate
from shardline.components.training.model import Transformer

END = 0
SHAPE = ModelShape(layers=1, dim=16, heads=2, kv_heads=1, hidden=24, vocab=11, max_positions=64)


class Counting(torch.nn.Module):
    """Always says that the next token is the last one plus one, modulo the vocabulary; remembers what it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen: list[list[int]] = []

    def forward(self, tokens: Tensor, positions: Tensor, documents: None) -> Tensor:
        assert positions.tolist() == [list(range(tokens.shape[1]))]
        self.seen.append(tokens[0].tolist())
        return torch.nn.functional.one_hot((tokens + 1) % 11, 11).float() * 100


def run(
    model: torch.nn.Module, *, new_tokens: int = 20, temperature: float = 0.0, seed: int = 0, context: int = 8
) -> list[int]:
    return generate(
        model, [3], new_tokens=new_tokens, temperature=temperature, seed=seed, end_of_text=END, context=context
    )


@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_it_stops_at_end_of_text_and_never_exceeds_the_context(temperature: float) -> None:
    model = Counting()
    assert run(model, temperature=temperature) == [4, 5, 6, 7, 8, 9, 10]
    assert model.seen[0] == [END, 3]
    assert model.seen[-1] == [3, 4, 5, 6, 7, 8, 9, 10]


def test_it_makes_no_more_than_it_was_asked_for() -> None:
    assert run(Counting(), new_tokens=2) == [4, 5]


def test_a_seed_gives_the_same_text_and_another_seed_another() -> None:
    torch.manual_seed(0)
    model = Transformer(SHAPE)
    texts = [run(model, new_tokens=30, temperature=2.0, seed=seed, context=16) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_a_model_that_diverged_still_gives_a_sample() -> None:
    model = Transformer(SHAPE)
    with torch.no_grad():
        model.norm.weight.fill_(float("nan"))  # type: ignore[union-attr]
    assert len(run(model, new_tokens=3, temperature=1.0, context=16)) <= 3
