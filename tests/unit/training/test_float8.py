"""Layers that multiply in float8, emulated: what is rounded, what is not, and what the machine has to have."""

from __future__ import annotations

import sys

import pytest
import torch
from torchao.float8.float8_linear import Float8Linear

from shardline.components.common.config.presets import ModelShape
from shardline.components.common.errors import EnvironmentLacking
from shardline.components.training import float8
from shardline.components.training.model import Transformer

SHAPE = ModelShape(layers=2, dim=32, heads=2, kv_heads=1, hidden=48, vocab=64)


def model(shape: ModelShape = SHAPE, *, recompute: str = "none") -> Transformer:
    torch.manual_seed(0)
    return Transformer(shape, recompute=recompute).to(torch.bfloat16)


def rounded(module: torch.nn.Module) -> set[str]:
    return {name for name, each in module.named_modules() if isinstance(each, Float8Linear)}


def test_layers_are_rounded_and_nothing_else_is() -> None:
    exact, close = model(), model()
    float8.use_float8(close.layers.values(), emulated=True)
    linear = {name for name, each in exact.named_modules() if isinstance(each, torch.nn.Linear)}
    assert rounded(close) == linear - {"head"}
    assert {k: v.shape for k, v in close.named_parameters()} == {k: v.shape for k, v in exact.named_parameters()}
    # Fifteen tokens: a number that no device multiplies as it is.
    tokens = torch.arange(15).view(1, -1)
    apart = (close(tokens, tokens) - exact(tokens, tokens)).abs().max() / exact(tokens, tokens).abs().max()
    assert 0 < apart < 0.2


@pytest.mark.parametrize("recompute", ["full", "selective"])
def test_gradients_are_the_same_however_activations_come_back(recompute: str) -> None:
    found = []
    for kind in ("none", recompute):
        here = model(recompute=kind)
        float8.use_float8(here.layers.values(), emulated=True)
        tokens = torch.arange(16).view(1, -1)
        here(tokens, tokens).float().square().sum().backward()
        found.append({name: parameter.grad for name, parameter in here.named_parameters()})
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])  # type: ignore[arg-type]


def test_sizes_that_cannot_be_stay_as_they_are() -> None:
    here = model(ModelShape(layers=1, dim=32, heads=2, kv_heads=1, hidden=40, vocab=64))
    float8.use_float8(here.layers.values(), emulated=True)
    assert {name.rsplit(".", 1)[1] for name in rounded(here)} == {"query", "key", "value", "output"}


def test_a_worker_without_such_a_device_is_refused() -> None:
    message = "float8 needs GPUs of compute capability 8.9 or more; this worker computes on a CPU"
    with pytest.raises(EnvironmentLacking, match=message):
        float8.check(torch.device("cpu"))


def test_a_worker_without_torchao_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao.float8", None)
    with pytest.raises(EnvironmentLacking, match="float8 needs torchao: ") as raised:
        float8.use_float8(model().layers.values())
    assert raised.value.hint == "pip install shardline[float8], or take bf16"
