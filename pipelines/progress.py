"""How far a run is, from its events and its status. Pure: records in, rows and lines of text out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from shardline.components.planning.layout import Layout

#: Events that are shown as they come; the others are in the run's events and its report.
NOTABLE = {
    "run.resumed",
    "sharding.skipped",
    "sharding.overtaken",
    "codec.chosen",
    "training.skipped",
    "evaluation.rough",
    "layout.chosen",
    "model.imported",
    "run.forked",
    "run.merged",
    "worker.lost",
    "node.set_aside",
    "checkpoint.loaded",
    "checkpoint.damaged",
    "checkpoint.failed",
}
_STATES = {"step.started": "running", "step.finished": "done", "step.failed": "failed", "step.stopped": "stopped"}
#: What a step's progress is counted in.
_UNITS = {"shard": "units", "train": "steps", "evaluate": "blocks"}


@dataclass
class Row:
    """One step as it is shown. `total` is None where there is nothing to count."""

    name: str
    state: str = "waiting"  # running, done, failed, stopped
    done: int = 0
    total: int | None = None
    text: str = ""

    @property
    def unit(self) -> str:
        """What `done` and `total` count, where there is something to count."""
        return _UNITS.get(self.name, "") if self.total else ""

    @property
    def line(self) -> str:
        """The row as a line of plain text."""
        running = self.total and self.state == "running"
        counted = f"{self.done:,}/{self.total:,} {self.unit}".rstrip() if running else self.state
        return f"{self.name}: {counted}{'  ' + self.text if self.text else ''}"


class Progress:
    """The rows of the steps `names`, kept up to date."""

    def __init__(self, names: Iterable[str]) -> None:
        self.rows = {name: Row(name) for name in names}

    @property
    def running(self) -> Row | None:
        return next((row for row in self.rows.values() if row.state == "running"), None)

    @property
    def last(self) -> Row | None:
        """The last step that has begun."""
        return next((row for row in reversed(self.rows.values()) if row.state != "waiting"), None)

    def apply(self, record: Mapping[str, Any]) -> str | None:
        """Take an event in; returns the line to show for it, if it is one that is shown."""
        name, data = record["name"], record["data"]
        row = self.rows.get(str(data.get("step"))) if name.startswith("step.") else None
        if row is not None:
            row.state = _STATES[name]
            row.text = _result(row.name, data) if row.state == "done" else ""
            if row.state == "done":
                row.done = row.total or 0
        return describe(record) if name in NOTABLE else None

    def update(self, status: Mapping[str, Any]) -> None:
        """Take `status.json` in."""
        row = self.rows.get(str(status.get("phase")))
        if row is None or row.state != "running":
            return
        row.done = int(status.get("step", 0))
        total = status.get("total", status.get("steps"))
        row.total = int(total) if total else None
        row.text = _numbers(status)


def describe(record: Mapping[str, Any]) -> str:
    """An event in one line: its name, and its reason or its plain values."""
    if record["name"] == "checkpoint.loaded":
        return f"going on from the checkpoint of step {record['data']['step']:,}"
    if record["name"] == "layout.chosen":
        return f"layout.chosen: {Layout.from_json(record['data']['layout'])} ({record['reason']})"
    plain = {key: value for key, value in record["data"].items() if isinstance(value, str | int | float)}
    detail = record.get("reason") or ", ".join(f"{key} {value}" for key, value in plain.items())
    return f"{record['name']}: {detail}" if detail else str(record["name"])


def duration(seconds: float) -> str:
    """`seconds` as a clock shows them: 0:07, 12:30, 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def size(count: float) -> str:
    """A number of bytes, such as 12.3 MB."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def _result(name: str, summary: Mapping[str, Any]) -> str:
    """What the last event of the step `name` says of its outcome."""
    loss = summary.get("loss")
    if not isinstance(loss, int | float):
        return ""
    return f"loss {loss:.3f} (mean of the last steps)" if name == "train" else f"loss {loss:.3f}"


def _numbers(status: Mapping[str, Any]) -> str:
    parts = []
    if activity := status.get("activity"):
        parts.append(str(activity))
    if isinstance(status.get("bytes"), int | float):
        parts.append(size(status["bytes"]))
    if isinstance(status.get("loss"), int | float):
        parts.append(f"loss {status['loss']:.3f}")
    if isinstance(status.get("tokens_per_second"), int | float):
        parts.append(f"{status['tokens_per_second']:,.0f} tokens/s")
    if isinstance(status.get("eta_seconds"), int | float):
        parts.append(f"{duration(status['eta_seconds'])} left")
    return "  ".join(parts)
