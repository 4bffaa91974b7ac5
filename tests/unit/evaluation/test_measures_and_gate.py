from __future__ import annotations

import math

import pytest

from shardline.components.common.config.schema import Gate
from shardline.components.common.errors import EXIT_GATE, GateRefused
from shardline.components.evaluation.gate import decide, enforce
from shardline.components.evaluation.measures import measure


def test_a_uniform_guess_over_bytes_needs_eight_bits() -> None:
    measured = measure(nats=1000 * math.log(256), tokens=1000, bytes=1000)
    assert measured.bits_per_byte == pytest.approx(8)
    assert measured.perplexity == pytest.approx(256)


def test_bits_per_byte_is_per_byte_and_loss_per_token() -> None:
    measured = measure(nats=100.0, tokens=50, bytes=200)
    assert measured.loss == 2.0
    assert measured.bits_per_byte == pytest.approx(100 / math.log(2) / 200)


def test_numbers_beyond_floats_do_not_raise() -> None:
    assert measure(nats=1e6, tokens=1, bytes=1).perplexity == math.inf
    assert math.isnan(measure(nats=math.nan, tokens=1, bytes=1).perplexity)
    with pytest.raises(ValueError, match="0 tokens"):
        measure(nats=0.0, tokens=0, bytes=0)


@pytest.mark.parametrize(
    ("threshold", "value", "passed"),
    [
        (None, 9.0, True),
        (2.0, 2.0, True),
        (2.0, 2.0001, False),
        (None, math.nan, False),
        (2.0, math.nan, False),
        (2.0, math.inf, False),
    ],
)
def test_gate(threshold: float | None, value: float, passed: bool) -> None:
    verdict = decide(Gate(max_bits_per_byte=threshold), bits_per_byte=value)
    assert verdict.passed is passed
    result = {"gate": verdict.to_json()}
    if passed:
        enforce(result)
        return
    with pytest.raises(GateRefused) as caught:
        enforce(result)
    assert caught.value.exit_code == EXIT_GATE
    assert verdict.reason in str(caught.value)
