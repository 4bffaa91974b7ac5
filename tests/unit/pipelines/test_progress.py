"""The rows that progress is drawn from, and their lines of text."""

from __future__ import annotations

from typing import Any

import pytest

from shardline.pipelines.progress import Progress, duration, size


def event(name: str, reason: str | None = None, **data: Any) -> dict[str, Any]:
    return {"name": name, "data": data} | ({"reason": reason} if reason else {})


def test_a_step_from_start_to_end() -> None:
    progress = Progress(["shard", "train"])
    assert progress.apply(event("step.started", step="train")) is None
    assert progress.running is progress.rows["train"]
    progress.update(
        {"phase": "train", "step": 5, "steps": 20, "loss": 2.5, "tokens_per_second": 1234.5, "eta_seconds": 61.0}
    )
    assert progress.rows["train"].line == "train: 5/20  loss 2.500  1,234 tokens/s  1:01 left"
    progress.apply(event("step.finished", step="train"))
    assert progress.rows["train"].line == "train: done  loss 2.500"
    assert (progress.rows["train"].done, progress.running) == (20, None)


def test_a_status_that_is_not_of_the_running_step_is_left_alone() -> None:
    progress = Progress(["shard", "train"])
    progress.apply(event("step.started", step="shard"))
    progress.update({"phase": "train", "step": 5, "steps": 20})
    progress.update({"phase": "unheard-of", "step": 5})
    assert [row.done for row in progress.rows.values()] == [0, 0]


def test_a_loss_that_is_no_number_is_no_error() -> None:
    progress = Progress(["train"])
    progress.apply(event("step.started", step="train"))
    progress.update({"phase": "train", "step": 1, "steps": 2, "loss": "nan"})
    assert progress.rows["train"].line == "train: 1/2"


def test_notable_events_are_shown_with_their_reason() -> None:
    progress = Progress(["train"])
    assert progress.apply(event("layout.chosen", reason="two devices", pp=2)) == "layout.chosen: two devices"
    assert progress.apply(event("checkpoint.loaded", step=7)) == "checkpoint.loaded: step 7"
    assert progress.apply(event("checkpoint.committed", step=7)) is None


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (59.6, "1:00"), (3723, "1:02:03")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 bytes"), (1500, "1.5 kB"), (2.5e12, "2.5 TB")])
def test_sizes(count: float, text: str) -> None:
    assert size(count) == text
