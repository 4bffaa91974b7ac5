"""Models and optimizers of one's own: each mistake is refused by name, with what to do, before anything is trained."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from shardline.components.common.config.presets import PRESETS
from shardline.components.common.config.training_schema import Optimizer
from shardline.components.common.errors import UserError
from shardline.components.training.classes import check_stages, model_class, optimizer_class
from shardline.components.training.model import Transformer
from shardline.components.training.optimizer import build_optimizer, check_state

ROOT = Path(__file__).resolve().parents[3]
SHAPE = replace(PRESETS["tiny"], vocab=300)
HALVES = [range(2), range(2, 4)]

MODULE = """\
from torch import nn, optim
import torch
from shardline.components.training.model import Transformer

class NoModule:
    pass

class NoScale(nn.Module):
    pass

class OtherArguments(Transformer):
    def __init__(self, shape):
        super().__init__(shape)

class Whole(Transformer):
    def __init__(self, shape, *, layers, attend, recompute):
        super().__init__(shape, attend=attend, recompute=recompute)

class Listed(Transformer):
    def __init__(self, shape, *, layers, attend, recompute):
        super().__init__(shape, layers=layers, attend=attend, recompute=recompute)
        self.layers = nn.ModuleList(self.layers.values())

class Buffered(Transformer):
    def __init__(self, shape, **options):
        super().__init__(shape, **options)
        self.register_buffer("angles", torch.arange(4), persistent=False)

class Shared(Transformer):
    def __init__(self, shape, **options):
        super().__init__(shape, **options)
        if self.head is not None and self.embedding is not None:
            self.head.weight = self.embedding.weight

class Random(Transformer):
    def __init__(self, shape, **options):
        super().__init__(shape, **options)
        self.drop = nn.Dropout(0.1)

class Everywhere(Transformer):
    def __init__(self, shape, **options):
        super().__init__(shape, **options)
        self.gain = nn.Parameter(torch.ones(3))

class Wider(Transformer):
    def __init__(self, shape, *, layers, **options):
        super().__init__(shape, layers=layers, **options)
        if self.norm is not None:
            self.norm = nn.RMSNorm(len(layers))

class Lacking(Transformer):
    def __init__(self, shape, *, layers, **options):
        super().__init__(shape, layers=layers, **options)
        if 0 not in layers:
            self.head = None

class Unscaled(Transformer):
    def initial_scale(self, name):
        return "small"

class NoMoments(optim.SGD):
    pass

class StepIsAMoment(optim.SGD):
    moments = ("step",)

class OtherOptions(optim.SGD):
    moments = ()

class KeepsMore(optim.SGD):
    moments = ()

    def __init__(self, groups, *, lr, betas, eps):
        super().__init__(groups, lr=lr, momentum=betas[0])

number = 3
"""


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "classes.py").write_text(MODULE)
    (tmp_path / "mine" / "broken.py").write_text("import torch\n1 / 0\n")
    (tmp_path / "mine" / "needs.py").write_text("import not_installed_here\n")
    (tmp_path / "mine" / "typo.py").write_text("def (:\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "mine"]:
        del sys.modules[name]


def refused(name: str, *, optimizer: bool = False) -> str:
    with pytest.raises(UserError) as caught:
        optimizer_class(name) if optimizer else model_class(name)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_without_a_name_the_model_is_this_packages() -> None:
    assert model_class(None) is Transformer


def test_the_examples_are_found_and_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    build = model_class("examples.extend.parallel:Decoder")
    check_stages(build, SHAPE, cuts=HALVES, name="examples.extend.parallel:Decoder")
    assert optimizer_class("examples.extend.ademamix:AdEMAMix").__name__ == "AdEMAMix"


@pytest.mark.parametrize("optimizer", [False, True])
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("no_such:Decoder", "there is no module no_such; put the folder that it is in on PYTHONPATH"),
        ("mine.no_such:Decoder", "there is no module mine.no_such; put"),
        ("mine.broken:Decoder", "mine.broken cannot be imported: ZeroDivisionError: division by zero; `python -c"),
        ("mine.needs:Decoder", "mine.needs cannot be imported: ModuleNotFoundError: No module named 'not_installed"),
        ("mine.typo:Decoder", "mine.typo cannot be imported: SyntaxError"),
        ("mine.classes:Noscale", "mine.classes has no Noscale; did you mean NoScale or"),
        ("mine.classes:Zebra", "mine.classes has no Zebra; define it in "),
        ("mine.classes:NoModule", "it is not a class derived from torch."),
        ("mine.classes:number", "it is not a class derived from torch."),
    ],
)
def test_what_is_not_there_or_no_class(name: str, told: str, optimizer: bool) -> None:
    message = refused(name, optimizer=optimizer)
    assert message.startswith("training.optimizer.name: " if optimizer else "model.class: ")
    assert told in message


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("NoScale", "cannot be a model: it has no method initial_scale(name); docs/extending.md says"),
        ("OtherArguments", "it is not to be called with (shape, layers=, attend=, recompute=): got an unexpected"),
    ],
)
def test_a_class_that_is_no_model(name: str, told: str) -> None:
    assert told in refused(f"mine.classes:{name}")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("NoMoments", "cannot be an optimizer: its `moments` is not a tuple of names; docs/extending.md"),
        ("StepIsAMoment", "its `moments` has 'step'"),
        ("OtherOptions", "it is not to be called with (groups, lr=, betas=, eps=): got an unexpected"),
    ],
)
def test_a_class_that_is_no_optimizer(name: str, told: str) -> None:
    assert told in refused(f"mine.classes:{name}", optimizer=True)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Whole", "`layers` of the stage of layers 0 to 1 is no nn.ModuleDict of them by number"),
        ("Listed", "`layers` of the stage of layers 0 to 1 is no nn.ModuleDict of them by number"),
        ("Buffered", "it has the buffer angles, whose values would be lost: compute it in forward"),
        ("Shared", "head.weight is the same parameter as another"),
        ("Random", "drop draws random numbers, which depend on the layout"),
        ("Everywhere", "2 stages have gain, which they could not keep equal"),
        ("Wider", "norm.weight is [2] in its stage, and is [4] in the whole model"),
        ("Lacking", "no stage has head.weight"),
        ("Unscaled", "initial_scale('embedding.weight') is 'small', which is neither a number nor None"),
    ],
)
def test_a_model_whose_stages_are_not_its_parts(name: str, told: str) -> None:
    build = model_class(f"mine.classes:{name}")
    with pytest.raises(UserError, match="cannot be a model") as caught:
        check_stages(build, SHAPE, cuts=HALVES, name=f"mine.classes:{name}")
    assert told in str(caught.value)


def test_an_optimizer_that_keeps_more_than_it_says() -> None:
    model = nn.Linear(3, 3)
    optimizer = build_optimizer(model.named_parameters(), config=Optimizer(name="mine.classes:KeepsMore"))
    check_state(optimizer)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    with pytest.raises(UserError, match="KeepsMore keeps momentum_buffer otherwise than its `moments` say"):
        check_state(optimizer)
