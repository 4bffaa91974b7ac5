"""How far a run is, from its events and its status. Pure: records in, rows and lines of text out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

#: Events that are shown as they come; the others are in the run's events and its report.
NOTABLE = {
    "run.resumed",
    "sharding.skipped",
    "codec.chosen",
    "layout.chosen",
    "worker.lost",
    "checkpoint.loaded",
    "checkpoint.damaged",
    "checkpoint.failed",
}


@dataclass
class Row:
    """One step as it is shown. `total` is None where there is nothing to count."""

    name: str
    state: str = "waiting"  # running, done, failed
    done: int = 0
    total: int | None = None
    text: str = ""

    @property
    def line(self) -> str:
        """The row as a line of plain text."""
        counted = f"{self.done:,}/{self.total:,}" if self.total and self.state == "running" else self.state
        return f"{self.name}: {counted}{'  ' + self.text if self.text else ''}"


class Progress:
    """The rows of the steps `names`, kept up to date."""

    def __init__(self, names: Iterable[str]) -> None:
        self.rows = {name: Row(name) for name in names}

    @property
    def running(self) -> Row | None:
        return next((row for row in self.rows.values() if row.state == "running"), None)

    def apply(self, record: Mapping[str, Any]) -> str | None:
        """Take an event in; returns the line to show for it, if it is one that is shown."""
        name, data = record["name"], record["data"]
        row = self.rows.get(str(data.get("step"))) if name.startswith("step.") else None
        if row is not None:
            row.state = {"step.started": "running", "step.finished": "done", "step.failed": "failed"}[name]
            if row.state == "done":
                row.done, row.text = row.total or 0, _result(row.text)
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


def _result(text: str) -> str:
    """What of a running step's text still says something when it is done: not its speed, nor the time left."""
    return "  ".join(part for part in text.split("  ") if part.startswith("loss "))


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
