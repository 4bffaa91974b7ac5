"""The bodies of the components that begin and end a run, called as a pipeline's tasks call them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from shardline.components.common import completion, firing, task
from shardline.components.common.config import RunConfig, parse
from shardline.components.common.errors import UserError
from shardline.components.common.runfolder import run_storage
from shardline.components.common.step import stepping
from shardline.components.common.steps import STEPS
from shardline.components.monitoring.component import report
from tests.commands import SMALL

pytestmark = pytest.mark.usefixtures("handlers")


@dataclass
class Artifact:
    path: str
    metadata: dict[str, Any] = field(default_factory=dict)


@pytest.fixture
def text(tmp_path: Path) -> str:
    return SMALL.replace("./data", str(tmp_path / "data"))


@pytest.fixture
def config(text: str) -> RunConfig:
    return parse(text, source="").config


def do(config: RunConfig, *steps: str) -> None:
    for step in steps:
        with stepping(config, step):
            pass


def fail(config: RunConfig, step: str) -> None:
    with pytest.raises(UserError), stepping(config, step):
        raise UserError("no")


def write_report(text: str, folder: Path, *, scheduled: bool = False, due: str = "") -> Artifact:
    page = Artifact(str(folder / "page.html"))
    report.python_func(config=text, scheduled=scheduled, due=due, page=page)
    return page


def test_the_report_ends_a_run_whose_steps_are_done(text: str, config: RunConfig, tmp_path: Path) -> None:
    do(config, *STEPS[:-1])
    page = write_report(text, tmp_path)
    assert "<html" in Path(page.path).read_text()
    assert page.metadata["url"].endswith("/runs/small/report.html")
    assert completion.finished(run_storage(config))


def test_the_report_survives_a_step_that_failed(text: str, config: RunConfig, tmp_path: Path) -> None:
    do(config, "shard", "plan")
    fail(config, "train")
    page = write_report(text, tmp_path)
    assert "<html" in Path(page.path).read_text()
    run = run_storage(config)
    assert not completion.finished(run) and run.exists("errors/train.json")


def test_the_report_of_a_run_that_never_began(text: str, config: RunConfig, tmp_path: Path) -> None:
    page = write_report(text, tmp_path)
    assert "nothing to report" in Path(page.path).read_text()
    assert not run_storage(config).exists("config.yaml")


def test_the_report_of_a_firing_is_that_of_its_run(text: str, config: RunConfig, tmp_path: Path) -> None:
    do(config.model_copy(update={"run": "small-20261203-0230"}), *STEPS[:-1])
    page = write_report(text, tmp_path, scheduled=True, due="2026-12-03T02:30:00Z")
    assert page.metadata["url"].endswith("/runs/small-20261203-0230/report.html")


def test_steps_count_as_done_in_order_and_since_the_last_beginning(config: RunConfig) -> None:
    do(config, "shard")
    assert not completion.steps_done(config)
    do(config, "plan", "train", "evaluate")
    assert completion.steps_done(config)
    do(config, "shard")  # the steps after it have not been done since: their pods could not start
    assert not completion.steps_done(config)
    do(config, "plan", "train", "evaluate")
    assert completion.steps_done(config)
    fail(config, "train")
    assert not completion.steps_done(config)


def test_a_firing_is_named_by_the_minute_it_was_due_in_utc(config: RunConfig) -> None:
    moment = datetime(2026, 12, 3, 3, 30, 17, tzinfo=timezone(timedelta(hours=1)))
    assert firing.at(config, moment).run == "small-20261203-0230"
    assert firing.parse_moment("2026-12-03T02:30:00Z") == datetime(2026, 12, 3, 2, 30, tzinfo=UTC)
    longest = config.model_copy(update={"run": "r" * firing.LONGEST_BASE})
    name = firing.at(longest, moment).run
    assert parse(SMALL.replace("run: small", f"run: {name}"), source="").config.run == name
    with pytest.raises(UserError, match="give the run a shorter name"):
        firing.at(longest.model_copy(update={"run": "r" * (firing.LONGEST_BASE + 1)}), moment)


def test_a_kubeflow_that_does_not_say_when_a_firing_was_due(text: str) -> None:
    with pytest.raises(UserError, match="is no time"):
        task.parse_config(text, scheduled=True, due="{{$.pipeline_job_schedule_time_utc}}")
    assert task.parse_config(text, due="{{$.pipeline_job_schedule_time_utc}}").run == "small"
