"""The rows that progress is drawn from, and their lines of text."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from shardline.pipelines.progress import Progress, Row, duration, size
from shardline.pipelines.watch import LineDisplay


def event(name: str, reason: str | None = None, **data: Any) -> dict[str, Any]:
    return {"name": name, "data": data} | ({"reason": reason} if reason else {})


def test_a_step_from_start_to_end() -> None:
    progress = Progress(["shard", "train"])
    assert progress.apply(event("step.started", step="train")) is None
    assert progress.running is progress.rows["train"]
    progress.update(
        {"phase": "train", "step": 5, "steps": 20, "loss": 2.5, "tokens_per_second": 1234.5, "eta_seconds": 61.0}
    )
    assert progress.rows["train"].line == "train: 5/20 steps  loss 2.500  1,234 tokens/s  1:01 left"
    progress.apply(event("step.finished", step="train", loss=2.25))
    assert progress.rows["train"].line == "train: done  loss 2.250 (mean of the last steps)"
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
    assert progress.rows["train"].line == "train: 1/2 steps"


def test_notable_events_are_shown_with_their_reason() -> None:
    progress = Progress(["train"])
    chosen = event("layout.chosen", reason="two devices", layout={"dp_shard": 2})
    assert progress.apply(chosen) == "layout.chosen: dp_shard=2 (two devices)"
    assert progress.apply(event("checkpoint.loaded", step=7)) == "going on from the checkpoint of step 7"
    lost = event("worker.lost", reason="rank 1 was ended by SIGKILL", ranks=[1])
    assert progress.apply(lost) == "worker.lost: rank 1 was ended by SIGKILL"
    assert progress.apply(event("checkpoint.committed", step=7)) is None


def test_a_step_that_was_stopped_has_not_failed() -> None:
    progress = Progress(["shard", "train"])
    progress.apply(event("step.started", step="train"))
    progress.update({"phase": "train", "step": 5, "steps": 20, "eta_seconds": 61.0})
    progress.apply(event("step.stopped", reason="interrupted", step="train"))
    assert progress.rows["train"].line == "train: stopped"
    assert progress.last is progress.rows["train"] and progress.running is None


def test_evaluation_counts_blocks() -> None:
    progress = Progress(["evaluate"])
    progress.apply(event("step.started", step="evaluate"))
    progress.update({"phase": "evaluate", "step": 12, "total": 360})
    assert progress.rows["evaluate"].line == "evaluate: 12/360 blocks"


def test_a_line_that_says_nothing_new_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 11))
    monkeypatch.setattr("shardline.pipelines.watch.time.monotonic", lambda: next(clock))
    console = Console(file=io.StringIO())
    display, row = LineDisplay(console), Row("train", state="running")
    for done in (0, 0, 5, 5):
        row.done, row.total = done, 20 if done else None
        display.show([row])
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines() == ["train: running", "train: 5/20 steps"]


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (59.6, "1:00"), (3723, "1:02:03")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 bytes"), (1500, "1.5 kB"), (2.5e12, "2.5 TB")])
def test_sizes(count: float, text: str) -> None:
    assert size(count) == text
