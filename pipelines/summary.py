"""What a run is and what it has produced, from its folder alone: as data for programs, as a table for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
from shardline.components.common.storage import Storage
from shardline.components.common.streams import by_step, read_all
from shardline.pipelines.progress import duration, size
from shardline.pipelines.steps import STEPS


def collect(run: Storage) -> dict[str, Any]:
    """The state and the results of the run in `run`; what is not there yet is None or empty."""
    config = read_config(run)
    finished = {
        record["data"]["step"]: record["data"]
        for record in read_all(run.at("events"))
        if record["name"] == "step.finished"
    }
    metrics = [record["data"] for record in by_step(read_all(run.at("metrics"))) if "loss" in record["data"]]
    evaluations = [name for name in run.names("evaluation") if name.endswith(".json")]
    return {
        "run": config.run,
        "folder": run.url,
        "done": read_json(run, DONE_FILE),
        "status": read_json(run, STATUS_FILE),
        "owner": owner(run),
        "errors": {name: record for name in STEPS if (record := read_json(run, error_file(name)))},
        "steps_finished": [name for name in STEPS if name in finished],
        "dataset": read_json(run, DATASET_FILE),
        "training": _training(metrics, config.training.steps),
        "evaluation": read_json(run, f"evaluation/{evaluations[-1]}") if evaluations else None,
        "model": run.url_of("model") if run.names("model") else None,
        "report": run.url_of(REPORT_FILE) if run.exists(REPORT_FILE) else None,
    }


def _training(metrics: list[dict[str, Any]], steps: int) -> dict[str, Any] | None:
    if not metrics:
        return None
    last = metrics[-1]
    seconds = sum(float(record.get("seconds", 0)) for record in metrics)
    tokens = sum(int(record.get("tokens", 0)) for record in metrics)
    return {
        "step": int(last["step"]) + 1,  # steps are counted from 0, and this one is done
        "steps": steps,
        "loss": last["loss"],
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds if seconds else None,
    }


def table(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """`summary` as names and values to print."""
    rows = [("run", str(summary["run"])), ("state", _state(summary)), ("folder", str(summary["folder"]))]
    for name, text in (
        ("data set", _dataset(summary["dataset"])),
        ("training", _trained(summary["training"])),
        ("held-out", _evaluated(summary["evaluation"])),
        ("gate", _gate(summary["evaluation"])),
        ("model", summary["model"]),
        ("report", summary["report"]),
    ):
        if text:
            rows.append((name, str(text)))
    rows += [(f"error in {name}", str(record["message"])) for name, record in summary["errors"].items()]
    return rows


def next_steps(summary: Mapping[str, Any], *, config: str) -> str:
    """What to do after a run that is done."""
    lines = []
    if summary["report"]:
        lines.append(f"look at the report:  {summary['report']}")
    steps = (summary["training"] or {}).get("steps")
    if steps:
        lines.append(f"train further:       shardline run {config} --set training.steps={2 * int(steps)}")
    lines.append(
        "use your own text:   name files, folders or URLs as corpus in the config, and give the run a new name"
    )
    return "\n".join(lines)


def plain_rows(result: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """The plain values of a step's result, as names and values to print."""
    rows: list[tuple[str, str]] = []
    for key, value in result.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            rows += plain_rows(value, f"{name}.")
        elif isinstance(value, list | tuple):
            rows += [(name, str(item)) for item in value if not isinstance(item, Mapping | list | tuple)]
        elif isinstance(value, float):
            rows.append((name, f"{value:.6g}"))
        elif value is not None:
            rows.append((name, str(value)))
    return rows


def _state(summary: Mapping[str, Any]) -> str:
    if summary["done"]:
        return f"done, {summary['done']['finished']}"
    status, holder = summary["status"] or {}, summary["owner"]
    place = f"{status['phase']}, step {status['step']:,}" if status else "no step has begun to count"
    if holder and holder["alive"]:
        return f"running ({place}), process {holder['pid']} on {holder['host']}"
    return f"stopped ({place})"


def _dataset(data: Mapping[str, Any] | None) -> str | None:
    if not data:
        return None
    parts = [f"{data[key]:,} {key}" for key in ("documents", "tokens", "blocks") if isinstance(data.get(key), int)]
    if isinstance(data.get("bytes"), int):
        parts.append(size(data["bytes"]))
    return ", ".join(parts) or None


def _trained(training: Mapping[str, Any] | None) -> str | None:
    if not training:
        return None
    loss = training["loss"]
    parts = [
        f"step {training['step']:,} of {training['steps']:,}",
        f"loss {loss:.3f}" if isinstance(loss, float) else f"loss {loss}",
    ]
    if training["tokens_per_second"]:
        parts.append(f"{training['tokens_per_second']:,.0f} tokens/s over {duration(training['seconds'])}")
    return ", ".join(parts)


def _evaluated(evaluation: Mapping[str, Any] | None) -> str | None:
    if not evaluation or evaluation.get("bits_per_byte") is None:
        return None
    others = {"gzip_9": "gzip -9", "xz": "xz"}
    compressors = evaluation.get("compressors") or {}
    beside = ", ".join(f"{name} {_number(compressors[key])}" for key, name in others.items() if key in compressors)
    text = f"{_number(evaluation.get('bits_per_byte'))} bits per byte"
    return f"{text} ({beside})" if beside else text


def _gate(evaluation: Mapping[str, Any] | None) -> str | None:
    gate = (evaluation or {}).get("gate")
    if not gate or (gate["passed"] and gate["max_bits_per_byte"] is None):
        return None
    return f"{'passed' if gate['passed'] else 'refused'}: {gate['reason']}"


def _number(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
