"""What a run is and what it has produced, from its folder alone: as data for programs, as a table for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from shardline.components.common.config import RunConfig
from shardline.components.common.errors import EXITS_STOPPED
from shardline.components.common.metrics import read_metrics, recent_loss
from shardline.components.common.owner import owner
from shardline.components.common.runfolder import (
    DATASET_FILE,
    DONE_FILE,
    REPORT_FILE,
    STATUS_FILE,
    error_file,
    read_config,
    read_json,
)
from shardline.components.common.steps import STEPS
from shardline.components.common.storage import Storage
from shardline.components.common.streams import read_all
from shardline.components.training.checkpoint import catalog
from shardline.pipelines import results

Summary = Mapping[str, Any]


def collect(run: Storage) -> dict[str, Any]:
    """The state and the results of the run in `run`; what is not there yet is None or empty."""
    config = read_config(run)
    events = read_all(run.at("events"))
    ended = [str(event["data"]["step"]) for event in events if event["name"] == "step.finished"]
    checkpoint = catalog.current(run)
    exported = read_json(run, "model/export.json")
    return {
        "run": config.run,
        "folder": run.url,
        "done": read_json(run, DONE_FILE),
        "status": read_json(run, STATUS_FILE),
        "owner": owner(run),
        "errors": {name: record for name in STEPS if (record := read_json(run, error_file(name)))},
        "steps_finished": [name for name in STEPS if name in ended],
        "last_finished": ended[-1] if ended else None,
        "dataset": read_json(run, DATASET_FILE),
        "checkpoint": checkpoint.step if checkpoint else None,
        "training": _training(read_metrics(run, events=events), config),
        "evaluation": _newest_evaluation(run),
        "model": run.url_of("model") if exported else None,
        "model_step": int(exported["source"]["checkpoint"].rpartition("-")[2]) if exported else None,
        "report": run.url_of(REPORT_FILE) if run.exists(REPORT_FILE) else None,
    }


def _training(metrics: list[dict[str, Any]], config: RunConfig) -> dict[str, Any] | None:
    if not metrics:
        return None
    seconds = sum(float(record["data"].get("seconds", 0)) for record in metrics)
    tokens = sum(int(record["data"].get("tokens", 0)) for record in metrics)
    schedule = config.training.schedule
    return {
        "step": int(metrics[-1]["data"]["step"]) + 1,  # steps are counted from 0, and this one is done
        "steps": config.training.steps,
        "decay_steps": schedule.decay_steps if schedule.decay != "constant" else None,
        "floor": schedule.floor,
        "loss": recent_loss(metrics),
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds if seconds else None,
    }


def _newest_evaluation(run: Storage) -> dict[str, Any] | None:
    # By time: a run may be evaluated at an earlier step again.
    names = [name for name in run.names("evaluation") if name.endswith(".json")]
    found = [record for name in names if (record := read_json(run, f"evaluation/{name}"))]
    return max(found, key=lambda record: str(record["time"]), default=None)


def table(summary: Summary, *, command: str) -> list[tuple[str, str]]:
    """`summary` as names and values to print; `command` is what this program is called by."""
    evaluation, model = summary["evaluation"], summary["model"]
    rows = [("run", str(summary["run"])), ("state", _state(summary, command)), ("folder", str(summary["folder"]))]
    for name, text in (
        ("data set", results.dataset_line(summary["dataset"])),
        ("training", results.training_line(summary["training"])),
        *(results.held_out(evaluation) if evaluation else ()),
        ("model", f"{model} (step {summary['model_step']:,})" if model else None),
        ("report", summary["report"]),
    ):
        if text:
            rows.append((name, str(text)))
    failed = {name: record for name, record in summary["errors"].items() if record["exit_code"] not in EXITS_STOPPED}
    return rows + [(f"error in {name}", str(record["message"])) for name, record in failed.items()]


def _state(summary: Summary, command: str) -> str:
    status, holder = summary["status"] or {}, summary["owner"]
    if holder and holder["alive"]:
        place = f"{status['phase']}, step {status['step']:,}" if status else "no step has begun to count"
        return f"running ({place}), process {holder['pid']} on {holder['host']}"
    if summary["done"]:
        return f"done, {summary['done']['finished']}"
    if summary["errors"]:
        name, record = next(iter(summary["errors"].items()))
        if record["exit_code"] not in EXITS_STOPPED:
            return f"failed in {name}"
        return f"stopped in {name}; {goes_on(summary, step=name)}"
    return _standing(summary, command)


def _standing(summary: Summary, command: str) -> str:
    """How far a run is that no process works on and no error ended."""
    checkpoint, training, evaluation = summary["checkpoint"], summary["training"], summary["evaluation"]
    if checkpoint is None or training is None or checkpoint < training["steps"]:
        if training or checkpoint:
            return f"stopped in train; {goes_on(summary, step='train')}"
        if summary["dataset"]:
            return f"sharded; next: {command} train CONFIG"
        return f"begun; next: {command} run CONFIG"
    if not evaluation or evaluation["step"] != checkpoint:
        return f"trained; next: {command} evaluate CONFIG"
    if summary["last_finished"] != "report":
        return f"evaluated; next: {command} report CONFIG"
    return "evaluated and reported"


def goes_on(summary: Summary, *, step: str | None) -> str:
    """Where the same command goes on with a run that was stopped in the pipeline step `step`."""
    if step != "train":
        return "the same command goes on from here"
    checkpoint, status = summary["checkpoint"], summary["status"] or {}
    done = (summary["training"] or {}).get("step", 0)
    if status.get("phase") == "train":
        done = max(done, int(status["step"]))  # metrics may be written for some steps alone
    if checkpoint is None:
        return f"no checkpoint yet: the same command begins training again ({_steps(done)} done)"
    again = f" ({_steps(done - checkpoint)} will be done again)" if done > checkpoint else ""
    return f"the same command goes on from optimizer step {checkpoint:,}{again}"


def _steps(number: int) -> str:
    return f"{number:,} step{'s' * (number != 1)}"


def next_steps(summary: Summary, *, train_to: Callable[[int], str]) -> str:
    """What to do after a run that is done; `train_to` is the command that trains to a number of steps."""
    lines = []
    if summary["report"]:
        lines.append(f"look at the report:  {summary['report']}")
    if training := summary["training"]:
        done, steps = int(training["step"]), 2 * int(training["step"])
        lines.append(f"train further:       {train_to(steps)}")
        if (end := training["decay_steps"]) and end < steps:
            lines.append(
                f"                     (steps {max(done, end) + 1:,}-{steps:,} run at the floor, "
                f"{training['floor']:g} x lr; set training.schedule.decay_steps at the beginning to plan for more)"
            )
    lines.append(
        "use your own text:   name files, folders or URLs as corpus in the config, and give the run a new name"
    )
    return "\n".join(lines)
