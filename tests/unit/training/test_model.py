"""The decoder in float64: what a token may see, positions that count by distance alone, the cut into stages."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from shardline.components.common.config.presets import ModelShape
from shardline.components.training.model import Transformer

SHAPE = ModelShape(layers=4, dim=32, heads=4, kv_heads=2, hidden=48, vocab=40)
AGREES = 1e-12
#: Two rows that hold documents of these lengths: three in the first, two in the second.
LENGTHS = ((4, 1, 6), (7, 4))
ROWS, LENGTH = len(LENGTHS), sum(LENGTHS[0])


def build(shape: ModelShape = SHAPE, *, layers: range | None = None) -> Transformer:
    torch.manual_seed(0)
    return Transformer(shape, layers=layers).double()


def tokens() -> Tensor:
    return torch.randint(SHAPE.vocab, (ROWS, LENGTH), generator=torch.Generator().manual_seed(1))


def positions() -> Tensor:
    return torch.tensor([[place for length in row for place in range(length)] for row in LENGTHS])


def documents() -> Tensor:
    rows = [[number for number, length in enumerate(row) for _ in range(length)] for row in LENGTHS]
    return torch.tensor(rows, dtype=torch.int32)


def plain_positions() -> Tensor:
    return torch.arange(LENGTH).expand(ROWS, LENGTH)


def furthest(first: Tensor, second: Tensor) -> float:
    return float((first - second).abs().max())


def expected_view(document_attention: bool) -> Tensor:
    """bool[rows, seer, seen]."""
    ids = documents().tolist() if document_attention else [[0] * LENGTH] * ROWS
    return torch.tensor(
        [[[seen <= seer and row[seen] == row[seer] for seen in range(LENGTH)] for seer in range(LENGTH)] for row in ids]
    )


@pytest.mark.parametrize("document_attention", [True, False])
@torch.no_grad()
def test_a_token_changes_what_follows_in_its_document_and_nothing_else(document_attention: bool) -> None:
    model = build()
    view = (positions(), documents()) if document_attention else (plain_positions(), None)
    before = model(tokens(), *view)
    changed = torch.zeros(ROWS, LENGTH, LENGTH, dtype=torch.bool)
    for row in range(ROWS):
        for place in range(LENGTH):
            other = tokens()
            other[row, place] = (other[row, place] + 1) % SHAPE.vocab
            # Exactly: what is masked has a weight of zero, not a small one.
            differs = (model(other, *view) != before).any(dim=-1)
            assert not differs[1 - row].any(), "a token reached another sample"
            changed[row, :, place] = differs[row]
    assert torch.equal(changed, expected_view(document_attention))


@pytest.mark.parametrize("document_attention", [True, False])
def test_a_gradient_reaches_only_what_was_seen(document_attention: bool) -> None:
    stage = build(layers=range(1, SHAPE.layers))
    view = (positions(), documents()) if document_attention else (plain_positions(), None)
    generator = torch.Generator().manual_seed(2)
    hidden = torch.randn(ROWS, LENGTH, SHAPE.dim, dtype=torch.float64, generator=generator, requires_grad=True)
    weights = torch.randn(SHAPE.vocab, dtype=torch.float64, generator=generator)
    out = stage(hidden, *view) @ weights
    reached = torch.zeros(ROWS, LENGTH, LENGTH, dtype=torch.bool)
    for row in range(ROWS):
        for place in range(LENGTH):
            (gradient,) = torch.autograd.grad(out[row, place], hidden, retain_graph=True)
            came = (gradient != 0).any(dim=-1)
            assert not came[1 - row].any(), "a gradient reached another sample"
            reached[row, place] = came[row]
    assert torch.equal(reached, expected_view(document_attention))


@torch.no_grad()
def test_a_document_in_a_block_is_as_it_is_alone() -> None:
    model = build()
    together = model(tokens(), positions(), documents())
    for row, lengths in enumerate(LENGTHS):
        for alone, found in zip(tokens()[row].split(lengths), together[row].split(lengths), strict=True):
            expected = model(alone.unsqueeze(0), torch.arange(len(alone)).unsqueeze(0))
            assert furthest(found, expected[0]) <= AGREES


@torch.no_grad()
def test_positions_count_by_their_distance_alone() -> None:
    model = build()
    expected = model(tokens(), positions(), documents())
    # Each document moved by a distance of its own.
    moved = positions() + 17 * documents() + 5
    assert furthest(model(tokens(), moved, documents()), expected) <= AGREES
    stretched = positions() * 2
    assert furthest(model(tokens(), stretched, documents()), expected) > 1e-6, "positions do not count at all"


@torch.no_grad()
def test_grouped_heads_are_full_heads_that_share_keys_and_values() -> None:
    grouped, full = build(), build(replace(SHAPE, kv_heads=SHAPE.heads))
    state = grouped.state_dict()
    for name, value in state.items():
        if name.endswith(("attention.key.weight", "attention.value.weight")):
            heads = value.view(SHAPE.kv_heads, SHAPE.head_dim, SHAPE.dim)
            state[name] = heads.repeat_interleave(SHAPE.heads // SHAPE.kv_heads, dim=0).flatten(0, 1)
    full.load_state_dict(state)
    for view in ((positions(), documents()), (plain_positions(), None)):
        assert furthest(grouped(tokens(), *view), full(tokens(), *view)) <= AGREES


@pytest.mark.parametrize("cuts", [(2,), (1, 3), (1, 2, 3)])
@torch.no_grad()
def test_stages_one_after_the_other_are_the_whole(cuts: tuple[int, ...]) -> None:
    whole = build()
    state = whole.state_dict()
    x, names = tokens(), []
    for first, last in zip((0, *cuts), (*cuts, SHAPE.layers), strict=True):
        stage = build(layers=range(first, last))
        own = list(stage.state_dict())
        stage.load_state_dict({name: state[name] for name in own})
        names += own
        x = stage(x, positions(), documents())
    assert names == list(state), "every parameter is in one stage, under its name in the whole"
    assert torch.equal(x, whole(tokens(), positions(), documents()))
