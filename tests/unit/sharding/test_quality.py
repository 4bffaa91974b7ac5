"""The measure of a shuffle tells a good one from a bad one."""

from __future__ import annotations

import pytest

from shardline.components.sharding.order import Geometry
from shardline.components.sharding.order.quality import qualities

ARGUMENTS = {"batch": 64, "seed": 3, "block_bytes": 100}


def test_a_larger_window_is_nearer_to_a_true_shuffle() -> None:
    geometry = Geometry([40_000, 24_000], row_group=64)
    one, *some, true = qualities(geometry, windows=[1, 16, 64, 256], **ARGUMENTS)
    # Groups that were drawn at random have a mean place of their own, which W of them have in common by 1 / W.
    for found, window in zip(some, [16, 64, 256], strict=True):
        assert found.clumping == pytest.approx(1 + 64 / window, rel=0.15)
    assert one.clumping > 30 and true.clumping == pytest.approx(1, abs=0.1)
    assert one.shared == 1 > some[0].shared > some[1].shared > some[2].shared > true.shared
    assert (one.memory, true.memory) == (64 * 100, 64_000 * 100)


def test_a_window_of_everything_is_a_true_shuffle() -> None:
    whole, true = qualities(Geometry([5000], row_group=10), windows=[500], **ARGUMENTS)
    assert whole.clumping == pytest.approx(true.clumping, abs=0.25) and whole.shared == pytest.approx(
        true.shared, abs=0.02
    )


def test_few_blocks_are_enough() -> None:
    assert len(qualities(Geometry([7], row_group=2), windows=[1, 2], **ARGUMENTS)) == 3
