"""Which steps are sound."""

from __future__ import annotations

import math
import random

import pytest

from shardline.components.common.config.training_schema import Guard
from shardline.components.training.guard import Verdict, Watch

SETTINGS = Guard(window=16, factor=6.0)


def noise(count: int, *, around: float = 3.0, seed: int = 0) -> list[float]:
    draw = random.Random(seed)
    return [around + draw.gauss(0, 0.1) for _ in range(count)]


@pytest.mark.parametrize("loss, norm", [(math.nan, 1.0), (math.inf, 1.0), (3.0, math.nan), (3.0, math.inf)])
def test_a_number_that_is_not_finite_is_noticed_and_compared_with_by_nobody(loss: float, norm: float) -> None:
    watch = Watch(SETTINGS, recent=noise(16))
    before = watch.recent
    assert watch.judge(loss, norm) is Verdict.NOT_FINITE
    assert watch.recent == before


def test_a_jump_is_a_spike_and_noise_is_none() -> None:
    watch = Watch(SETTINGS)
    assert {watch.judge(loss, 1.0) for loss in noise(500)} == {Verdict.SOUND}
    assert watch.judge(watch.threshold - 1e-9, 1.0) is Verdict.SOUND
    assert watch.judge(watch.threshold, 1.0) is Verdict.SPIKE


def test_nothing_is_a_spike_before_there_is_enough_to_compare_with() -> None:
    watch = Watch(SETTINGS, recent=noise(15))
    assert watch.threshold == math.inf and watch.judge(50.0, 1.0) is Verdict.SOUND


def test_a_falling_loss_and_a_constant_one_are_no_spikes() -> None:
    falling = Watch(SETTINGS)
    assert all(falling.judge(10 * 0.99**step, 1.0) is Verdict.SOUND for step in range(400))
    constant = Watch(SETTINGS, recent=[2.0] * 16)
    assert constant.judge(2.1, 1.0) is Verdict.SOUND and constant.judge(2.2, 1.0) is Verdict.SPIKE


def test_a_reported_spike_becomes_normal_and_one_that_is_rolled_back_does_not() -> None:
    rolled_back = Watch(SETTINGS.model_copy(update={"spike": "roll-back"}), recent=noise(16))
    assert [rolled_back.judge(9.0, 1.0) for _ in range(40)] == [Verdict.SPIKE] * 40
    reported = Watch(SETTINGS, recent=noise(16))
    verdicts = [reported.judge(9.0, 1.0) for _ in range(40)]
    assert verdicts[0] is Verdict.SPIKE and verdicts[-1] is Verdict.SOUND


def test_with_the_losses_of_before_it_judges_as_it_would_have() -> None:
    losses = [*noise(40), 9.0, *noise(40, seed=1)]
    whole = Watch(SETTINGS)
    verdicts = [whole.judge(loss, 1.0) for loss in losses]
    for cut in (5, 20, 41, 60):
        first = Watch(SETTINGS)
        before = [first.judge(loss, 1.0) for loss in losses[:cut]]
        second = Watch(SETTINGS, recent=first.recent)
        assert before + [second.judge(loss, 1.0) for loss in losses[cut:]] == verdicts


def test_off_means_off() -> None:
    assert Watch(Guard(window=8, spike="off"), recent=[1.0] * 8).judge(1e9, 1.0) is Verdict.SOUND
