"""What checkpoints cost a run: `python -m benchmarks.checkpoint [--work FOLDER] [--steps 60] [--every 10] ...`.

Trains the same small model with saves in the background and with saves in the step loop, in turns, and reads off what
the runs recorded: for what share of the time between two saves training stood still, and how much longer the steps took
while a save was under way than the others of the same run. Compare the ratios; seconds are this machine's.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from shardline.components.common.storage import Storage
from shardline.components.common.streams import read_all

CONFIG = """\
version: 1
run: {run}
storage: {work}
corpus: "stdlib:asyncio"
tokenizer: {{vocab: 4096}}
sharding: {{held_out: 0}}
model: {{layers: {layers}, dim: {dim}, heads: 4, kv_heads: 4, hidden: {hidden}}}
training:
  steps: {steps}
  global_batch: 8
  microbatch: 4
  sequence: 128
  schedule: {{warmup: 1}}
  checkpoint: {{every: {every}, async: {background}, keep: 1}}
resources: {{processes: {processes}, device: {device}}}
"""
#: Steps at the beginning that warm up what is compiled and cached.
_WARM_UP = 3
_TOUCHING = 0.01


def main() -> None:
    arguments = parse_arguments()
    work = Path(arguments.work).absolute()
    found: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    for turn in range(arguments.rounds):
        for background in (True, False):
            run = train(work, f"{'async' if background else 'sync'}-{turn}", arguments, background=background)
            found[background].append(measure(run))
    report = {
        "cores": os.cpu_count(),
        **{name: getattr(arguments, name) for name in ("steps", "every", "processes", "device")},
        "async": medians(found[True]),
        "sync": medians(found[False]),
    }
    print(json.dumps(report, indent=1) if arguments.json else table(report))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", default="bench-work/checkpoint", help="folder or mounted store for the runs")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--every", type=int, default=10, help="optimizer steps between saves")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    return parser.parse_args()


def train(work: Path, run: str, arguments: argparse.Namespace, *, background: bool) -> Storage:
    folder = work / "runs" / run
    shutil.rmtree(folder, ignore_errors=True)
    work.mkdir(parents=True, exist_ok=True)
    config = work / f"{run}.yaml"
    config.write_text(
        CONFIG.format(
            run=run,
            work=work,
            background=json.dumps(background),
            hidden=4 * arguments.dim,
            **{name: getattr(arguments, name) for name in ("layers", "dim", "steps", "every", "processes", "device")},
        )
    )
    for command in ("shard", "train"):
        line = [sys.executable, "-m", "shardline.pipelines.cli.main", command, str(config)]
        done = subprocess.run(line, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{command} failed:\n{done.stderr[-2000:]}")
    return Storage(str(folder))


def measure(run: Storage) -> dict[str, float]:
    """The figures of one run."""
    steps = [record for record in read_all(run.at("metrics")) if record["name"] == "train"][_WARM_UP:]
    saves = [event for event in read_all(run.at("events")) if event["name"] == "checkpoint.committed"]
    under_way = [(ended(save) - save["data"]["seconds"], ended(save)) for save in saves]
    beside, others = [], []
    for step in steps:
        worked = step["data"]["seconds"] - step["data"]["save_seconds"]
        end = ended(step)
        # Times are to the millisecond: what only touches is not beside.
        meets = any(min(end, until) - max(end - worked, begin) > _TOUCHING for begin, until in under_way)
        (beside if meets else others).append(worked)
    # The last one ends training, which waits for it: there is no step to hold up.
    blocked = [save["data"]["blocked_seconds"] for save in saves[:-1]]
    interval = statistics.mean(step["data"]["seconds"] for step in steps) * saves[0]["data"]["step"]
    return {
        "checkpoint_mb": saves[0]["data"]["bytes"] / 1e6,
        "save_seconds": statistics.median(save["data"]["seconds"] for save in saves[:-1]),
        "blocked_seconds": statistics.median(blocked),
        "blocked_share": statistics.mean(blocked) / interval,
        "step_seconds": statistics.median(others),
        "steps_beside_a_save": float(len(beside)),
        "slow_down": statistics.mean(beside) / statistics.mean(others) if beside else float("nan"),
    }


def ended(record: dict[str, Any]) -> float:
    return datetime.fromisoformat(record["time"]).timestamp()


def medians(found: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(each[name] for each in found), 5) for name in found[0]}


def table(report: dict[str, Any]) -> str:
    lines = [
        f"{report['processes']} processes on {report['cores']} cores, a save every {report['every']} steps",
        "",
        "| saves | MB | save s | blocked s | blocked share | step s | slow-down beside a save |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in ("async", "sync"):
        each = report[name]
        lines.append(
            f"| {name} | {each['checkpoint_mb']:.0f} | {each['save_seconds']:.3f} | {each['blocked_seconds']:.4f} "
            f"| {each['blocked_share']:.2%} | {each['step_seconds']:.3f} | {slow_down(each)} |"
        )
    return "\n".join(lines)


def slow_down(each: dict[str, float]) -> str:
    return (
        f"x {each['slow_down']:.3f} ({each['steps_beside_a_save']:.0f} steps)" if each["steps_beside_a_save"] else "-"
    )


if __name__ == "__main__":
    main()
