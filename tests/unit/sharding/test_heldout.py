from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import pytest

from shardline.components.sharding import heldout
from shardline.components.sharding.heldout import drawn, fingerprints, is_near, union

Prose = Callable[[int, int], str]


def test_the_share_that_is_drawn_is_the_one_asked_for_and_draws_are_independent() -> None:
    data = [str(number).encode() for number in range(20_000)]
    one = np.array([drawn(each, 0.1, purpose="one") for each in data])
    two = np.array([drawn(each, 0.1, purpose="two") for each in data])
    assert 0.09 < one.mean() < 0.11 and (one & two).mean() < 0.02
    assert not any(drawn(each, 0.0, purpose="one") for each in data)


def test_a_near_copy_is_noticed_and_other_text_is_not(prose: Prose) -> None:
    held_out = union([fingerprints(prose(seed, 500)) for seed in range(3)])
    copy = prose(1, 500)
    assert is_near(fingerprints(copy), held_out)
    assert is_near(fingerprints("    " + copy.replace("\n", "\r\n\t")), held_out)
    assert is_near(fingerprints(copy + prose(9, 200)), held_out)
    assert not is_near(fingerprints(copy + prose(9, 1200)), held_out)
    assert not is_near(fingerprints(prose(8, 500)), held_out)


def test_short_texts_are_compared_whole() -> None:
    held_out = union([fingerprints("short"), fingerprints("")])
    assert is_near(fingerprints(" short\n"), held_out) and not is_near(fingerprints("shorter"), held_out)


def test_a_window_has_the_same_hash_wherever_it_stands(prose: Prose, monkeypatch: pytest.MonkeyPatch) -> None:
    text = prose(3, 2000)
    whole = fingerprints(text)
    assert set(fingerprints("x" * 77 + text).tolist()) >= set(whole.tolist())
    assert 0.5 < len(whole) * heldout.KEEP_ONE_IN / len(text) < 1.5
    monkeypatch.setattr(heldout, "_CHUNK", 1000)
    assert np.array_equal(fingerprints(text), whole)


def test_nothing_is_near_when_nothing_is_held_out() -> None:
    assert not is_near(fingerprints(hashlib.sha256(b"x").hexdigest() * 9), union([]))
