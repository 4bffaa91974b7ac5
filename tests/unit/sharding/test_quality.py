"""The measure of a shuffle tells a good one from a bad one."""

from __future__ import annotations

import pytest

from shardline.components.sharding.order import Geometry
from shardline.components.sharding.order.quality import qualities

ARGUMENTS = {"batch": 64, "seed": 3, "block_bytes": 100}


def test_a_larger_window_is_nearer_to_a_true_shuffle() -> None:
    geometry = Geometry([40_000, 24_000], row_group=64)
    one, few, many, true = qualities(geometry, windows=[1, 16, 256], **ARGUMENTS)
    assert one.clumping > few.clumping > many.clumping
    # Batches out of one row group vary like single places: by the size of the batch. 16 groups leave a sixteenth of it.
    assert one.clumping == pytest.approx(64, rel=0.2) and few.clumping == pytest.approx(1 + 64 / 16, rel=0.2)
    assert many.clumping == pytest.approx(1.2, abs=0.2) and true.clumping == pytest.approx(1, abs=0.1)
    assert one.shared == 1 and few.shared > many.shared > true.shared
    assert (one.memory, true.memory) == (64 * 100, 64_000 * 100)


def test_a_window_of_everything_is_a_true_shuffle() -> None:
    whole, true = qualities(Geometry([5000], row_group=10), windows=[500], **ARGUMENTS)
    assert whole.clumping == pytest.approx(true.clumping, abs=0.25) and whole.shared == pytest.approx(
        true.shared, abs=0.02
    )


def test_few_blocks_are_enough() -> None:
    assert len(qualities(Geometry([7], row_group=2), windows=[1, 2], **ARGUMENTS)) == 3
