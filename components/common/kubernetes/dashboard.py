"""The Grafana dashboard, over the table of `common.series`. Pure. Called by `generate`.

It lies in a ConfigMap with the label by which Grafana's sidecar (kiwigrid/k8s-sidecar) finds dashboards.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from shardline.components.common.kubernetes.names import OUR_LABELS
from shardline.components.common.kubernetes.objects import Manifest, Meta
from shardline.components.common.series import (
    AGENT_ROLE,
    CHECKPOINT_STEP,
    CHECKPOINT_TIME,
    DEVICE_LIMIT,
    DEVICE_PEAK,
    GENERATION,
    HOST_PEAK,
    LAST_STEP,
    LEAST_WORLD_SIZE,
    LOSS,
    MEMORY_LIMIT,
    MEMORY_USED,
    MOST_RESTARTS,
    RESTARTS,
    SKIPPED,
    STEP,
    STEPS,
    TOKENS_PER_SECOND,
    WORLD_SIZE,
    Series,
)

#: Grafana's grid is 24 columns wide.
_WIDTH, _HEIGHT, _COLUMNS = 8, 8, 3
_SOURCE = {"type": "prometheus", "uid": "${source}"}
_CHOSEN = '{namespace=~"$namespace", run=~"$run"}'


@dataclass(frozen=True)
class Panel:
    """A chart over time: its lines, each an expression and a legend; `unit` is Grafana's name of it."""

    title: str
    lines: tuple[tuple[str, str], ...]
    unit: str = "short"

    def json(self, place: int) -> dict[str, Any]:
        row, column = divmod(place, _COLUMNS)
        return {
            "id": place + 1,
            "type": "timeseries",
            "title": self.title,
            "datasource": _SOURCE,
            "gridPos": {"h": _HEIGHT, "w": _WIDTH, "x": column * _WIDTH, "y": row * _HEIGHT},
            "fieldConfig": {"defaults": {"unit": self.unit}, "overrides": []},
            "targets": [
                {"refId": chr(ord("A") + number), "datasource": _SOURCE, "expr": expr, "legendFormat": legend}
                for number, (expr, legend) in enumerate(self.lines)
            ],
        }


def _all(series: Series) -> str:
    return f"{series}{_CHOSEN}"


def _run(series: Series) -> str:
    return f"max by (namespace, run) ({_all(series)})"


PANELS: tuple[Panel, ...] = (
    Panel("Loss, nats a token", ((_run(LOSS), "{{run}}"),)),
    Panel("Optimizer steps", ((_run(STEP), "{{run}}"), (_run(STEPS), "{{run}}: to be done"))),
    Panel("Tokens a second", ((_run(TOKENS_PER_SECOND), "{{run}}"),)),
    Panel("Workers", ((_run(WORLD_SIZE), "{{run}}"), (_run(LEAST_WORLD_SIZE), "{{run}}: at least"))),
    Panel("Generation", ((_run(GENERATION), "{{run}}"),)),
    Panel("Restarts", ((_run(RESTARTS), "{{run}}"), (_run(MOST_RESTARTS), "{{run}}: at most"))),
    Panel("Since the last step", ((f"time() - {_run(LAST_STEP)}", "{{run}}"),), "s"),
    Panel("Since the last checkpoint", ((f"time() - {_run(CHECKPOINT_TIME)}", "{{run}}"),), "s"),
    Panel("Steps since the last checkpoint", ((f"{_run(STEP)} - {_run(CHECKPOINT_STEP)}", "{{run}}"),)),
    Panel("Steps skipped in 15 minutes", ((f"max by (namespace, run) (increase({_all(SKIPPED)}[15m]))", "{{run}}"),)),
    Panel(
        "Memory of the pods", ((_all(MEMORY_USED), "{{run}} {{pod}}"), (_run(MEMORY_LIMIT), "{{run}}: limit")), "bytes"
    ),
    Panel("Peak memory of the workers", ((_all(HOST_PEAK), "{{run}} rank {{rank}}"),), "bytes"),
    Panel(
        "Peak memory on the devices",
        ((_all(DEVICE_PEAK), "{{run}} rank {{rank}}"), (_run(DEVICE_LIMIT), "{{run}}: a device has")),
        "bytes",
    ),
    Panel("Agents by role", ((f"sum by (run, role) ({_all(AGENT_ROLE)})", "{{run}}: {{role}}"),)),
)


def dashboard() -> dict[str, Any]:
    """The dashboard, as Grafana imports it."""
    return {
        "uid": "shardline",
        "title": "shardline: training",
        "tags": ["shardline"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [
                {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"},
                _variable("namespace", f"label_values({STEPS}, namespace)"),
                _variable("run", f'label_values({STEPS}{{namespace=~"$namespace"}}, run)'),
            ]
        },
        "panels": [panel.json(place) for place, panel in enumerate(PANELS)],
    }


def config_map(namespace: str) -> Manifest:
    """The ConfigMap that Grafana's sidecar takes the dashboard from."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": Meta("shardline-dashboard", namespace, {**OUR_LABELS, "grafana_dashboard": "1"}).manifest(),
        "data": {"shardline.json": json.dumps(dashboard(), indent=1) + "\n"},
    }


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": _SOURCE,
        "query": query,
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        # Where Prometheus scrapes outside a cluster there is no namespace.
        "allValue": ".*",
    }
