"""What a run has left in its folder, and what follows from it for the report. The only part that reads storage.

A run may be at any point: whatever is not there yet is None or empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

from shardline.components.common.config import RunConfig
from shardline.components.common.config.presets import ModelShape
from shardline.components.common.errors import EXITS_STOPPED
from shardline.components.common.metrics import read_metrics
from shardline.components.common.runfolder import DATASET_FILE, read_json
from shardline.components.common.storage import Storage
from shardline.components.common.streams import read_all
from shardline.components.monitoring.numbers import between, finite


@dataclass(frozen=True, kw_only=True)
class Records:
    """One run's records: `metrics` as from `read_metrics`, `errors` and `stopped` by step, what ended one last."""

    config: RunConfig
    url: str
    events: list[dict[str, Any]]
    metrics: list[dict[str, Any]]
    errors: dict[str, dict[str, Any]]
    stopped: tuple[str, ...] = ()
    plan: dict[str, Any] | None = None
    manifest: dict[str, Any] | None = None
    evaluation: dict[str, Any] | None = None
    exported: dict[str, Any] | None = None

    def named(self, *names: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["name"] in names]

    def values(self, key: str) -> list[tuple[float, float]]:
        """(optimizer step, value) of a metric, counting steps from 1; values that are not finite are left out."""
        pairs = ((record["data"]["step"] + 1, finite(record["data"].get(key))) for record in self.metrics)
        return [(step, value) for step, value in pairs if value is not None]

    @property
    def shape(self) -> ModelShape:
        vocab = self.manifest["vocab"] if self.manifest else self.config.tokenizer.vocab
        return self.config.model.shape(vocab)

    @property
    def steps_done(self) -> int:
        return self.metrics[-1]["data"]["step"] + 1 if self.metrics else 0

    @property
    def tokens(self) -> int:
        """Target tokens that the model has learned from."""
        return sum(record["data"]["tokens"] for record in self.metrics)

    @property
    def training_seconds(self) -> float:
        """Time spent in the optimizer steps that count."""
        return sum(seconds for _, seconds in self.values("seconds"))

    @property
    def throughput(self) -> float | None:
        """The median of the steps' tokens a second."""
        rates = [rate for _, rate in self.values("tokens_per_second")]
        return median(rates) if rates else None

    @property
    def wall_seconds(self) -> float | None:
        """From the first event to the last, interruptions included."""
        return between(self.events[0]["time"], self.events[-1]["time"]) if self.events else None

    def resumptions(self) -> list[tuple[int, int]]:
        """(optimizer step, generation) of each step that another generation than the step before it has done."""
        pairs = zip(self.metrics, self.metrics[1:], strict=False)
        return [(b["data"]["step"] + 1, b["generation"]) for a, b in pairs if a["generation"] != b["generation"]]

    def state(self) -> tuple[str, str]:
        """How the run stands, in a few words, and whether that is "good", "bad" or neither ("")."""
        if self.errors:
            return f"failed in step {' and '.join(sorted(self.errors))}", "bad"
        if self.stopped:
            return f"stopped in step {' and '.join(sorted(self.stopped))}", ""
        steps = self.config.training.steps
        if self.metrics and self.steps_done >= steps and self.evaluation:
            if self.evaluation["step"] >= self.steps_done:
                return "complete", "good"
            return f"step {self.steps_done:,}, not evaluated yet", ""
        if self.metrics:
            return ("trained", "") if self.steps_done >= steps else (f"step {self.steps_done:,} of {steps:,}", "")
        return ("data set ready", "") if self.manifest else ("begun", "")


def read(config: RunConfig, *, root: Storage, run: Storage) -> Records:
    """Everything that the report shows of the run in the folder `run`, under the storage root `root`."""
    dataset = read_json(run, DATASET_FILE)
    # The step that is running now removes its own error when it begins; what is left belongs to the others.
    # Beside them are folders, of what ended the workers of a generation.
    names = [name for name in run.names("errors") if name.endswith(".json")]
    left = {name.removesuffix(".json"): record for name in names if (record := read_json(run, f"errors/{name}"))}
    events = read_all(run.at("events"))
    return Records(
        config=config,
        url=run.url,
        events=events,
        metrics=read_metrics(run, events=events),
        errors={name: record for name, record in left.items() if record["exit_code"] not in EXITS_STOPPED},
        stopped=tuple(name for name, record in left.items() if record["exit_code"] in EXITS_STOPPED),
        plan=read_json(run, "plan.json"),
        manifest=read_json(root, f"datasets/{dataset['key']}/manifest.json") if dataset else None,
        evaluation=_newest(run, "evaluation"),
        exported=read_json(run, "model/export.json"),
    )


def _newest(run: Storage, folder: str) -> dict[str, Any] | None:
    # Names end in a step of fixed width; a rollback may leave higher ones, so the time decides.
    results = [read_json(run, f"{folder}/{name}") for name in run.names(folder) if name.endswith(".json")]
    return max((result for result in results if result), key=lambda result: str(result["time"]), default=None)
