"""The schedule at its corners, AdamW as it would have gone on, and the norm that gradients are cut to."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from shardline.components.common.config.training_schema import Optimizer, Schedule, Training
from shardline.components.training.optimizer import (
    AdamW,
    build_optimizer,
    clip_gradients,
    learning_rate,
    set_learning_rate,
    set_updates,
)

PEAK, FLOOR = 0.5, 0.1
CONFIG = Optimizer(lr=0.01, betas=[0.8, 0.9], eps=1e-3, weight_decay=0.2)


def rate(step: int, *, steps: int = 21, **schedule: Any) -> float:
    training = Training(
        steps=steps,
        global_batch=1,
        microbatch=1,
        sequence=8,
        optimizer=Optimizer(lr=PEAK),
        schedule=Schedule(**{"warmup": 4, "floor": FLOOR, **schedule}),
    )
    return learning_rate(step, training=training)


@pytest.mark.parametrize(
    ("step", "options", "share"),
    [
        (0, {}, 1 / 4),
        (3, {}, 1),
        (4, {}, 1),
        (8, {}, FLOOR + (1 - FLOOR) * (0.5 + 0.5 * math.sqrt(0.5))),
        (12, {}, FLOOR + (1 - FLOOR) * 0.5),
        (20, {}, FLOOR),
        (1000, {}, FLOOR),
        (0, {"warmup": 0}, 1),
        (20, {"warmup": 0, "floor": 0.0}, 0),
        (0, {"decay": "constant"}, 1 / 4),
        (20, {"decay": "constant"}, 1),
        (1000, {"decay": "constant", "decay_steps": 10}, 1),
        (8, {"decay_steps": 13}, FLOOR + (1 - FLOOR) * 0.5),
        (12, {"decay_steps": 13}, FLOOR),
        (20, {"decay_steps": 13}, FLOOR),
        (20, {"decay_steps": 37}, FLOOR + (1 - FLOOR) * 0.5),
        # A warm-up that the run does not live to see the end of, and one that outlasts the decay.
        (20, {"warmup": 42}, 1 / 2),
        (41, {"warmup": 42}, 1),
        (9, {"warmup": 10, "decay_steps": 5}, 1),
        (11, {"warmup": 10, "decay_steps": 5}, FLOOR),
    ],
)
def test_the_learning_rate(step: int, options: dict[str, Any], share: float) -> None:
    assert rate(step, **options) == pytest.approx(PEAK * share, rel=1e-12)


def test_decay_steps_set_the_schedule_whatever_the_number_of_steps() -> None:
    assert [rate(s, steps=13, decay_steps=30) for s in range(13)] == [rate(s, decay_steps=30) for s in range(13)]
    assert rate(10, steps=13) != rate(10)


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 4), nn.RMSNorm(4)).double()


def set_gradients(model: nn.Module, *, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, dtype=parameter.dtype, generator=generator)


def updated(model: nn.Module, *, seeds: range, optimizer: torch.optim.Optimizer) -> nn.Module:
    for seed in seeds:
        set_gradients(model, seed=seed)
        optimizer.step()
    return model


def same(first: nn.Module, second: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_only_matrices_decay() -> None:
    model = make_model()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = build_optimizer(model.named_parameters(), config=CONFIG)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        kept = 1 - CONFIG.lr * CONFIG.weight_decay if parameter.dim() > 1 else 1
        assert torch.equal(parameter, before[name] * kept), name


def test_a_new_optimizer_is_torchs() -> None:
    model, expected = make_model(), make_model()
    beta1, beta2 = CONFIG.betas
    plain = torch.optim.AdamW(
        [
            {"params": [p for p in expected.parameters() if p.dim() > 1], "weight_decay": CONFIG.weight_decay},
            {"params": [p for p in expected.parameters() if p.dim() <= 1], "weight_decay": 0.0},
        ],
        lr=CONFIG.lr,
        betas=(beta1, beta2),
        eps=CONFIG.eps,
    )
    updated(model, seeds=range(3), optimizer=build_optimizer(model.named_parameters(), config=CONFIG))
    updated(expected, seeds=range(3), optimizer=plain)
    assert same(model, expected)


def test_with_moments_and_their_updates_an_optimizer_goes_on() -> None:
    expected, model = make_model(), make_model()
    first = build_optimizer(expected.named_parameters(), config=CONFIG)
    updated(expected, seeds=range(3), optimizer=first)
    model.load_state_dict(expected.state_dict())
    second = build_optimizer(model.named_parameters(), config=CONFIG)
    for parameter, source in zip(model.parameters(), expected.parameters(), strict=True):
        for moment in AdamW.moments:
            second.state[parameter][moment].copy_(first.state[source][moment])
    set_updates(second, 3)
    updated(expected, seeds=range(3, 5), optimizer=first)
    updated(model, seeds=range(3, 5), optimizer=second)
    assert same(model, expected)


def test_the_learning_rate_is_set_for_matrices_and_vectors() -> None:
    optimizer = build_optimizer(make_model().named_parameters(), config=CONFIG)
    set_learning_rate(optimizer, 0.25)
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.25]


@pytest.fixture
def alone() -> Iterator[dist.ProcessGroup]:
    """The process group of one process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert dist.group.WORLD is not None
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()


def with_gradients(*gradients: list[float] | None) -> list[nn.Parameter]:
    parameters = []
    for gradient in gradients:
        parameter = nn.Parameter(torch.zeros(1 if gradient is None else len(gradient), dtype=torch.float64))
        parameter.grad = None if gradient is None else torch.tensor(gradient, dtype=torch.float64)
        parameters.append(parameter)
    return parameters


@pytest.mark.parametrize(
    ("limit", "factor"),
    [(None, 1.0), (20.0, 1.0), (1.3, 0.1)],
    ids=["no limit", "below the limit", "above the limit"],
)
def test_gradients_are_cut_to_their_common_norm(alone: dist.ProcessGroup, limit: float | None, factor: float) -> None:
    first, absent, second = with_gradients([3.0, -4.0], None, [12.0])
    norm = clip_gradients([first, absent, second], limit=limit, group=alone)
    assert float(norm) == 13.0, "the norm before"
    assert absent.grad is None
    assert first.grad is not None and second.grad is not None
    # torch divides by the norm plus 1e-6.
    tolerance = 0.0 if factor == 1 else 1e-6
    assert first.grad.tolist() == pytest.approx([3.0 * factor, -4.0 * factor], rel=tolerance, abs=0)
    assert second.grad.tolist() == pytest.approx([12.0 * factor], rel=tolerance, abs=0)


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_norm_that_is_not_finite_is_told(alone: dist.ProcessGroup, value: float) -> None:
    norm = clip_gradients(with_gradients([value, 1.0], [1.0]), limit=1.0, group=alone)
    assert not math.isfinite(float(norm))
