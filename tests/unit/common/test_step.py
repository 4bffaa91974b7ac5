"""The frame around a step: what it leaves behind when it is refused, stopped, fails or ends well."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from shardline.components.common.config import RunConfig, parse
from shardline.components.common.errors import ConfigError, Stopped, Superseded, UserError
from shardline.components.common.runfolder import adopt_config, run_storage
from shardline.components.common.step import stepping
from shardline.components.common.storage import Storage
from shardline.components.common.streams import read_all

CONFIG = """
{{version: 1, run: x, storage: {root}, corpus: /c,
 training: {{steps: 1, global_batch: 2, microbatch: 2, sequence: 64}}}}
"""


def config_at(root: Path, *overrides: str) -> RunConfig:
    return parse(CONFIG.format(root=root), source="x", overrides=overrides, ignore_environment=True).config


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    return config_at(tmp_path / "root")


@pytest.fixture
def run(config: RunConfig) -> Storage:
    """A run that has begun and has a data set."""
    storage = run_storage(config)
    adopt_config(storage, config)
    storage.write("dataset.json", b"{}")
    return storage


def fail(config: RunConfig, name: str, error: BaseException) -> None:
    with pytest.raises(type(error)), stepping(config, name):
        raise error


def names(run: Storage) -> list[str]:
    return [record["name"] for record in read_all(run.at("events"))]


@pytest.mark.parametrize("name", ["plan", "train", "evaluate", "report"])
def test_a_run_that_is_not_there_is_not_begun(config: RunConfig, name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run is here; run `shardline shard CONFIG` first"), stepping(config, name):
        pytest.fail("the step began")
    assert not (tmp_path / "root").exists()


def test_a_config_that_is_refused_is_no_error_of_the_run(run: Storage, tmp_path: Path) -> None:
    other = config_at(tmp_path / "root", "training.seed=5")
    with pytest.raises(ConfigError, match="began with 0"), stepping(other, "train"):
        pytest.fail("the step began")
    assert run.names("errors") == [] and names(run) == []


def test_what_another_process_has_taken_over_is_left_to_it(config: RunConfig, run: Storage) -> None:
    fail(config, "train", Superseded("another process has taken this run over"))
    assert run.names("errors") == []


def test_a_stop_is_recorded_as_a_stop(config: RunConfig, run: Storage) -> None:
    fail(config, "train", Stopped("terminated", signum=signal.SIGTERM))
    assert json.loads(run.read("errors/train.json"))["exit_code"] == 143
    assert names(run) == ["step.started", "step.stopped"]


@pytest.mark.parametrize(("ended", "left"), [("plan", True), ("train", False), ("evaluate", False), ("report", True)])
def test_an_error_is_gone_once_that_step_or_a_later_one_ends_well(
    config: RunConfig, run: Storage, ended: str, left: bool
) -> None:
    fail(config, "train", UserError("the loss diverged"))
    with stepping(config, ended):
        pass
    assert run.exists("errors/train.json") is left
