"""Tied embeddings of which both copies are on one rank, as schedules that lay the stages out in a V have them."""

from __future__ import annotations

from typing import Any, cast

import torch

from shardline.components.common.config.presets import ModelShape
from shardline.components.planning.layout import Layout, Place
from shardline.components.training.model import Transformer
from shardline.components.training.parallel import Parts
from shardline.components.training.tied import Tied

SHAPE = ModelShape(layers=2, dim=16, heads=2, kv_heads=1, hidden=24, vocab=40, tied=True)


def parts(shape: ModelShape, layout: Layout) -> Parts:
    layers = [range(1), range(1, 2)] if layout.stages == 2 else [range(2)]
    stages = {index: Transformer(shape, layers=held) for index, held in enumerate(layers)}
    nothing = cast(Any, None)
    return Parts(
        stages=stages,
        shape=shape,
        layout=layout,
        place=Place(pp=0, dp=0, cp=0, tp=0),
        pp_group=nothing,
        dp_group=nothing,
        tp_group=nothing,
        device=torch.device("cpu"),
    )


def test_two_copies_on_one_rank_get_the_sum_and_count_once() -> None:
    here = parts(SHAPE, Layout(stages_per_rank=2))
    tied = Tied(here)
    ((original, copy),) = tied.pairs
    assert original is here.stages[0].embedding.weight  # type: ignore[union-attr]
    assert copy is here.stages[1].embedding.weight and tied.copies == [copy]  # type: ignore[union-attr]
    first, second = torch.randn(40, 16), torch.randn(40, 16)
    original.grad, copy.grad = first.clone(), second.clone()
    tied.sum_gradients()
    assert torch.equal(original.grad, first + second) and torch.equal(copy.grad, original.grad)


def test_where_there_is_one_copy_nothing_is_done() -> None:
    for shape, layout in ((SHAPE, Layout()), (ModelShape(**{**vars(SHAPE), "tied": False}), Layout(stages_per_rank=2))):
        here = parts(shape, layout)
        tied = Tied(here)
        assert not tied.copies and not tied.pairs
        for stage in here.stages.values():
            for parameter in stage.parameters():
                parameter.grad = torch.ones_like(parameter)
        tied.sum_gradients()
        assert all(
            (p.grad == 1).all() for stage in here.stages.values() for p in stage.parameters() if p.grad is not None
        )


def test_a_tied_model_is_the_untied_one_with_equal_ends() -> None:
    torch.manual_seed(0)
    tied = Transformer(SHAPE).double()
    apart = Transformer(ModelShape(**{**vars(SHAPE), "tied": False})).double()
    state = tied.state_dict()
    assert "head.weight" not in state
    apart.load_state_dict({**state, "head.weight": state["embedding.weight"]})
    tokens, places = torch.randint(40, (2, 9)), torch.arange(9).expand(2, 9)
    whole = tied(tokens, places)
    assert torch.equal(whole, apart(tokens, places))
    # And its stages, one after the other, are the whole.
    x = tokens
    for layers in (range(1), range(1, 2)):
        stage = Transformer(SHAPE, layers=layers).double()
        stage.load_state_dict({name: state[name] for name in stage.state_dict()})
        x = stage(x, places)
    assert torch.equal(x, whole)
    # The one parameter collects the gradients of both of its uses.
    whole.sum().backward()
    apart(tokens, places).sum().backward()
    expected = apart.embedding.weight.grad + apart.head.weight.grad  # type: ignore[union-attr,operator]
    assert torch.allclose(tied.embedding.weight.grad, expected, atol=1e-12, rtol=0)  # type: ignore[union-attr,arg-type]
