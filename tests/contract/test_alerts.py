"""The alert rules and the exposition, by Prometheus' own promtool: each alert fires when it should, and not else."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest

from shardline.components.common.kubernetes.alerts import ALERTS, groups
from shardline.components.monitoring.exposition import TrainingCollector, families, registry_of
from tests.contract.servers import promtool
from tests.unit.monitoring.test_exposition import STANDING, VITALS

STORIES = Path(__file__).with_name("alerts.yaml")


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump(groups()), encoding="utf-8")
    return path


def test_the_rules_are_rules(rules: Path) -> None:
    done = subprocess.run([promtool(), "check", "rules", "--lint-fatal", rules], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(ALERTS)} rules found" in done.stdout


def test_alerts_fire_when_they_should_and_not_else(rules: Path) -> None:
    shutil.copy(STORIES, rules.parent)
    done = subprocess.run([promtool(), "test", "rules", STORIES.name], cwd=rules.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_story_that_ends_otherwise_is_seen(rules: Path) -> None:
    text = STORIES.read_text(encoding="utf-8").replace("0+60x5 300x40", "0+60x60")
    (rules.parent / STORIES.name).write_text(text, encoding="utf-8")
    done = subprocess.run([promtool(), "test", "rules", STORIES.name], cwd=rules.parent, capture_output=True)
    assert done.returncode != 0


def test_each_alert_has_a_story_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    checks: list[dict[str, Any]] = [
        check for story in yaml.safe_load(STORIES.read_text())["tests"] for check in story.get("promql_expr_test", [])
    ]
    told = {
        (alert.name, bool(check["exp_samples"])) for alert in ALERTS for check in checks if alert.name in check["expr"]
    }
    assert told == {(alert.name, fires) for alert in ALERTS for fires in (True, False)}


def test_the_exposition_keeps_to_the_conventions() -> None:
    class Fixed(TrainingCollector):
        def collect(self) -> Any:
            return families("try", STANDING, [VITALS])

    text = generate_latest(registry_of(Fixed("try", folder=None, standing=None)))
    done = subprocess.run([promtool(), "check", "metrics"], input=text, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
