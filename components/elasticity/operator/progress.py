"""How a run is, as labels and annotations of its job. Pure. Called by `turn`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from shardline.components.elasticity.operator.facts import Job
from shardline.components.elasticity.operator.settings import PHASE_LABEL

#: What a run's status holds, by the annotation that tells it.
STEP, LOSS, ETA, GENERATION, SPEED = (
    f"shardline.io/{name}" for name in ("step", "loss", "eta", "generation", "tokens-per-second")
)


def phase(job: Job, *, running: int, status: Mapping[str, Any] | None, done: bool) -> str:
    """One word: done, failed, succeeded, suspended, training, starting or pending."""
    if done and job.phase != "failed":
        return "done"
    if job.phase in ("failed", "succeeded", "suspended"):
        return job.phase
    if not running:
        return "pending"
    return "training" if status and status.get("phase") == "train" else "starting"


def told_by(status: Mapping[str, Any] | None) -> dict[str, str]:
    """What the run's status tells; nothing while it does not train."""
    if not status or status.get("phase") != "train":
        return {}
    found = {GENERATION: str(status.get("generation", "")), STEP: str(status.get("step", ""))}
    if "steps" in status:
        found[STEP] += f"/{status['steps']}"
    if (loss := _number(status.get("loss"))) is not None:
        found[LOSS] = f"{loss:.4g}"
    if (speed := _number(status.get("tokens_per_second"))) is not None:
        found[SPEED] = f"{speed:.0f}"
    if eta := _eta(status):
        found[ETA] = eta
    return found


def patch(job: Job, *, phase: str, told: Mapping[str, str]) -> dict[str, Any] | None:
    """The change of the job's metadata; None when it says all of that already."""
    labels = {} if job.labels.get(PHASE_LABEL) == phase else {PHASE_LABEL: phase}
    changed = {name: value for name, value in told.items() if job.annotations.get(name) != value}
    if not labels and not changed:
        return None
    return {"metadata": {"labels": labels, "annotations": changed}}


def _eta(status: Mapping[str, Any]) -> str | None:
    """When the last step will be done, as of the status: to the minute, so that it stands still while all goes well."""
    seconds = _number(status.get("eta_seconds"))
    try:
        written = datetime.fromisoformat(str(status["heartbeat"]))
        at = written + timedelta(seconds=seconds or 0)
    except (KeyError, ValueError, OverflowError):
        return None
    return None if seconds is None else at.astimezone(UTC).strftime("%Y-%m-%dT%H:%MZ")


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
