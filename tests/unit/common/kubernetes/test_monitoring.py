"""How a cluster looks at the workers: ports, probes, what scrapes them; rules and a dashboard of series that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from shardline.components.common.errors import ConfigError
from shardline.components.common.kubernetes import alerts, dashboard, monitoring
from shardline.components.common.kubernetes.objects import Manifest
from shardline.components.common.kubernetes.render import Kind, render
from shardline.components.common.series import SERIES
from tests.manifests import BASE, loaded, pods_of

DOCS = Path(__file__).parents[4] / "docs" / "monitoring.md"
NAME = re.compile(r"\bshardline_[a-z0-9_]+\b")


def worker(*overrides: str, kind: Kind = "pytorchjob") -> dict[str, Any]:
    (pod,) = pods_of(render(loaded(*overrides), only=["train"], kind=kind))
    (container,) = pod["containers"]
    return dict(container)


@pytest.mark.parametrize("kind", ["pytorchjob", "trainjob"])
def test_a_worker_has_the_port_and_probes_of_its_agent(kind: Kind) -> None:
    container = worker(kind=kind)
    assert container["ports"] == [{"name": "metrics", "containerPort": 9464}]
    paths = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert paths == {
        "startup": {"path": "/healthz", "port": "metrics"},
        "liveness": {"path": "/healthz", "port": "metrics"},
        "readiness": {"path": "/readyz", "port": "metrics"},
    }
    assert worker("monitoring.port=8000", kind=kind)["ports"] == [{"name": "metrics", "containerPort": 8000}]


def test_liveness_bears_with_an_agent_that_gets_no_cpu() -> None:
    for name, least in (("startup", 600), ("liveness", 300)):
        probe = worker()[f"{name}Probe"]
        assert probe["periodSeconds"] * probe["failureThreshold"] >= least
        assert probe["timeoutSeconds"] >= 10


def test_without_a_port_there_is_nothing_to_ask() -> None:
    assert not {"ports", "startupProbe", "livenessProbe", "readinessProbe"} & worker("monitoring.port=0").keys()


def test_only_agents_are_asked() -> None:
    for each in render(loaded(), only=["shard", "evaluate", "report"]):
        for pod in pods_of(each):
            assert "livenessProbe" not in pod["containers"][0] and "ports" not in pod["containers"][0]


def test_a_pod_monitor_when_it_is_asked_for() -> None:
    def monitors(*overrides: str) -> list[Manifest]:
        return [each for each in render(loaded(*overrides)) if each["kind"] == "PodMonitor"]

    assert monitors() == []
    (found,) = monitors("kubernetes.pod_monitor={release: prometheus}")
    (job,) = [each for each in render(loaded()) if each["kind"] == "PyTorchJob"]
    pod = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    assert found["metadata"]["labels"]["release"] == "prometheus" and found["metadata"]["name"] == "try"
    assert found["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    (endpoint,) = found["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] in [port["name"] for port in pod["spec"]["containers"][0]["ports"]]
    # The job stays the last: whoever launches it makes the others before.
    assert render(loaded("kubernetes.pod_monitor={}"), only=["train"])[-1]["kind"] == "PyTorchJob"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["monitoring.port=80"], "monitoring.port = 80: must be from 1024 to 65535"),
        (["monitoring.port=70000"], "must be from 1024 to 65535"),
        (["monitoring.port=-1"], "must be from 1024 to 65535"),
        (["monitoring.port=0", "kubernetes.pod_monitor={}"], "there is nothing to scrape"),
    ],
)
def test_a_port_that_cannot_be_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(*overrides, text=BASE)
    assert message in str(caught.value)


def test_the_scraper_is_let_in_to_the_workers_port_alone() -> None:
    policy = monitoring.scrape_policy("shardline")
    labels = worker_labels()
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    (rule,) = policy["spec"]["ingress"]
    assert rule["ports"] == [{"port": "metrics", "protocol": "TCP"}]
    all_runs = monitoring.pod_monitor_of_all("shardline")["spec"]["selector"]["matchLabels"]
    assert all_runs.items() <= labels.items()


def worker_labels() -> dict[str, str]:
    (job,) = [each for each in render(loaded()) if each["kind"] == "PyTorchJob"]
    return dict(job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["metadata"]["labels"])


@pytest.mark.parametrize("made", [alerts.prometheus_rule("a"), dashboard.config_map("a")], ids=["rules", "dashboard"])
def test_rules_and_dashboard_name_series_that_exist(made: Manifest) -> None:
    named = set(NAME.findall(yaml.safe_dump(made, width=10_000)))
    assert len(named) > 10
    assert named <= {series.name for series in SERIES}


def test_every_series_is_looked_at_or_looked_up() -> None:
    """What nobody charts is still in the page that explains all."""
    text = DOCS.read_text(encoding="utf-8")
    assert set(NAME.findall(text)) == {series.name for series in SERIES}


def test_every_alert_has_its_runbook() -> None:
    headings = re.findall(r"^### (\w+)$", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    assert headings == [alert.name for alert in alerts.ALERTS]
    for alert in alerts.ALERTS:
        assert alert.rule()["annotations"]["runbook"] == f"docs/monitoring.md#{alert.name.lower()}"
        assert alert.summary and alert.description


def test_the_dashboard_is_what_grafana_imports() -> None:
    tree = json.loads(dashboard.config_map("a")["data"]["shardline.json"])
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in tree["panels"]]
    assert len(set(places)) == len(places) == len(dashboard.PANELS)
    variables = {each["name"] for each in tree["templating"]["list"]}
    for panel in tree["panels"]:
        assert panel["targets"]
        for target in panel["targets"]:
            assert set(re.findall(r"\$(\w+)", target["expr"])) <= variables
