"""The alert rules, over the table of `common.series`. Pure. Called by `generate`.

Each has a section in docs/monitoring.md that says what to do. All look at a run in a namespace, whichever of its pods
tells: pods come and go. Thresholds are where nobody wants to be woken for less; change them by a patch of your own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shardline.components.common.kubernetes.names import OUR_LABELS
from shardline.components.common.kubernetes.objects import Manifest, Meta
from shardline.components.common.series import (
    CHECKPOINT_EVERY,
    CHECKPOINT_STEP,
    DEVICE_LIMIT,
    DEVICE_PEAK,
    LAST_STEP,
    LEAST_WORLD_SIZE,
    LOSS,
    MEMORY_LIMIT,
    MEMORY_USED,
    MOST_RESTARTS,
    RESTARTS,
    SKIPPED,
    STEP,
    TOKENS_PER_SECOND,
    WORKER_START,
    WORLD_SIZE,
)

_RUN = "by (namespace, run)"
#: Where the runbooks are, in the repository.
RUNBOOKS = "docs/monitoring.md"


@dataclass(frozen=True)
class Alert:
    """An alert; `since` is how long its expression has to hold, as Prometheus writes it."""

    name: str
    expr: str
    since: str
    severity: Literal["critical", "warning"]
    summary: str
    description: str

    def rule(self) -> Manifest:
        return {
            "alert": self.name,
            "expr": self.expr,
            "for": self.since,
            "labels": {"severity": self.severity},
            "annotations": {
                "summary": self.summary,
                "description": self.description,
                "runbook": f"{RUNBOOKS}#{self.name.lower()}",
            },
        }


def _most(expression: object) -> str:
    return f"max {_RUN} ({expression})"


ALERTS: tuple[Alert, ...] = (
    Alert(
        "ShardlineNoProgress",
        f"time() - {_most(f'{LAST_STEP} or {WORKER_START}')} > 900",
        "1m",
        "critical",
        "Run {{ $labels.run }} has finished no optimizer step for a quarter of an hour.",
        "Its workers are there, and the last step, or their start, was {{ $value | humanizeDuration }} ago.",
    ),
    Alert(
        "ShardlineTooFewWorkers",
        f"{_most(WORLD_SIZE)} < {_most(LEAST_WORLD_SIZE)}",
        "10m",
        "critical",
        "Run {{ $labels.run }} has fewer workers than it needs, so it does not train.",
        "{{ $value }} workers are at work; pods are missing, or wait for room or for a layout that fits them.",
    ),
    Alert(
        "ShardlineLossNotFinite",
        f"count {_RUN} ({LOSS} != {LOSS} or abs({LOSS}) == Inf) > 0",
        "0m",
        "critical",
        "The loss of run {{ $labels.run }} is not finite.",
        "Such a step leaves the weights alone; more than training.guard.most_skipped in a row end the run.",
    ),
    Alert(
        "ShardlineStepsSkipped",
        f"{_most(f'increase({SKIPPED}[15m])')} > 0",
        "0m",
        "warning",
        "Run {{ $labels.run }} skipped optimizer steps.",
        "In the last quarter of an hour steps left the weights alone: their loss or gradient norm was not finite, or a "
        "spike.",
    ),
    Alert(
        "ShardlineLossRising",
        f"{_most(f'avg_over_time({LOSS}[15m])')} > 1.1 * {_most(f'avg_over_time({LOSS}[15m] offset 1h)')}",
        "15m",
        "warning",
        "The loss of run {{ $labels.run }} is rising.",
        "Its mean over a quarter of an hour is {{ $value | humanize }}, a tenth or more above that of an hour before.",
    ),
    Alert(
        "ShardlineCheckpointTooOld",
        f"{_most(STEP)} - {_most(CHECKPOINT_STEP)} > 3 * {_most(CHECKPOINT_EVERY)}",
        "5m",
        "critical",
        "The newest checkpoint of run {{ $labels.run }} is too old.",
        "A loss now would cost {{ $value | humanize }} steps, more than three times those between checkpoints.",
    ),
    Alert(
        "ShardlineRestartsRunningOut",
        # How many of them are in a row nobody but the run's ledger knows: those of an hour are near enough.
        f"{_most(f'increase({RESTARTS}[1h])')} >= 0.5 * ({_most(MOST_RESTARTS)} > 0)",
        "0m",
        "warning",
        "Run {{ $labels.run }} is lost again and again.",
        "Its workers were started again {{ $value | humanize }} times within an hour; the run gives up when no step is "
        "saved in between.",
    ),
    Alert(
        "ShardlineMemoryNearLimit",
        f"{MEMORY_USED} / {MEMORY_LIMIT} > 0.9",
        "5m",
        "warning",
        "A pod of run {{ $labels.run }} is near its memory limit.",
        "{{ $labels.pod }} uses {{ $value | humanizePercentage }} of it; above it the kernel kills its workers.",
    ),
    Alert(
        "ShardlineDeviceMemoryNearLimit",
        f"{DEVICE_PEAK} / {DEVICE_LIMIT} > 0.95",
        "5m",
        "warning",
        "A device of run {{ $labels.run }} is nearly full.",
        "Rank {{ $labels.rank }} has used up to {{ $value | humanizePercentage }} of its memory.",
    ),
    Alert(
        "ShardlineSlow",
        f"{_most(TOKENS_PER_SECOND)} < 0.5 * {_most(f'quantile_over_time(0.5, {TOKENS_PER_SECOND}[1h] offset 15m)')}",
        "10m",
        "warning",
        "Run {{ $labels.run }} trains at less than half its speed.",
        "{{ $value | humanize }} tokens a second, less than half the median of the hour before.",
    ),
)


def groups() -> Manifest:
    """The rules as Prometheus itself reads them from a file."""
    return {"groups": [{"name": "shardline", "rules": [alert.rule() for alert in ALERTS]}]}


def prometheus_rule(namespace: str) -> Manifest:
    """The rules as the Prometheus Operator reads them."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": Meta("shardline", namespace, OUR_LABELS).manifest(),
        "spec": groups(),
    }
