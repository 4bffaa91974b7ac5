"""Which optimizer steps count, and the one number that stands for their loss."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardline.components.common.events import EventLog
from shardline.components.common.metrics import RECENT, read_metrics, recent_loss
from shardline.components.common.storage import Storage
from shardline.components.common.streams import StreamWriter, read_all


def train(run: Storage, *, generation: int, first: int, last: int, ends: str | None) -> None:
    with EventLog(run, generation=generation, writer="train") as events:
        with StreamWriter(run.at("metrics"), generation=generation + 1, writer="rank0") as metrics:
            for step in range(first, last):
                metrics.append("train", {"step": step, "loss": 4.0 - step / 100})
        if ends:
            events.emit(ends, {"step": last})


def steps(run: Storage) -> list[int]:
    return [record["data"]["step"] for record in read_metrics(run, events=read_all(run.at("events")))]


def test_steps_that_were_lost_do_not_count_once_training_ended_before_them(tmp_path: Path) -> None:
    run = Storage(str(tmp_path))
    train(run, generation=1, first=0, last=76, ends=None)
    assert steps(run) == list(range(76))  # killed after a checkpoint of step 60
    train(run, generation=3, first=60, last=60, ends="training.skipped")
    assert steps(run) == list(range(60))
    train(run, generation=5, first=60, last=80, ends="training.finished")
    assert steps(run) == list(range(80))


def test_the_loss_is_the_mean_of_the_last_steps_that_have_one() -> None:
    records = [{"data": {"loss": 9.0}}] * 5 + [{"data": {"loss": 2.0}}] * (RECENT - 1) + [{"data": {"loss": "nan"}}]
    assert recent_loss(records) == pytest.approx(2.0)
    assert recent_loss([{"data": {"loss": "nan"}}]) is None
    assert recent_loss([]) is None
