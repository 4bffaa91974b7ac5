"""Time without a finished step, beside plain torchrun, in one run: `python -m benchmarks.recovery [--faults 5] ...`.

    worker   one of two worker processes is killed, under one agent
    agent    one of two agents, with a worker each, is killed with all that it started; the other one goes on
    hang     one of two workers is stopped, under one agent; both have the same `--timeout`

Contenders take turns, `--rounds` times: each time a fresh job, and `--faults` faults. Results go to `--out` as JSON and
Markdown. The ratios are what to compare: the seconds are this machine's.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.recovery import torchrun
from benchmarks.recovery.settings import CONFIG
from shardline.components.common.processes import raise_on_signals
from shardline.components.elasticity.drill.judging import percentile

KINDS = ("worker", "agent", "hang")
CONTENDERS = ("shardline", "torchrun")
Seconds = list[float]


def main() -> None:
    raise_on_signals()  # no job is left behind
    arguments = parse_arguments()
    found: dict[tuple[str, str], list[Seconds]] = {}
    with tempfile.TemporaryDirectory(prefix="shardline-bench-") as folder:
        for turn in range(arguments.rounds):
            for kind in arguments.only or KINDS:
                for contender in CONTENDERS if turn % 2 == 0 else reversed(CONTENDERS):
                    place = Path(folder) / f"{turn}-{kind}-{contender}"
                    seconds = (ours if contender == "shardline" else bare)(place, kind, arguments)
                    print(f"{kind}, {contender}: {', '.join(f'{each:.1f}' for each in seconds)} s", file=sys.stderr)
                    found.setdefault((kind, contender), []).append(seconds)
    report = {"machine": about_machine(arguments), "results": [summary(*key, value) for key, value in found.items()]}
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(json.dumps(report, indent=1) + "\n")
    (out / "results.md").write_text(table(report))
    print(table(report))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--faults", type=int, default=5, help="in each job")
    parser.add_argument("--only", nargs="+", choices=KINDS, help="some of the faults")
    parser.add_argument("--every", type=int, default=20, help="optimizer steps between checkpoints")
    parser.add_argument("--timeout", type=int, default=10, help="seconds after which a silent peer counts as lost")
    parser.add_argument("--out", default="benchmarks/recovery/results", help="folder for the results")
    return parser.parse_args()


def ours(folder: Path, kind: str, arguments: argparse.Namespace) -> Seconds:
    folder.mkdir(parents=True)
    config = folder / "config.yaml"
    config.write_text(CONFIG.format(root=folder / "storage", every=arguments.every, timeout=arguments.timeout))
    command = [sys.executable, "-m", "shardline.pipelines.cli.main", "drill", str(config), "--json", "--kill", kind]
    command += ["--agents", "2" if kind == "agent" else "1", "--faults", str(arguments.faults)]
    command += ["--every", "3s", "--early", "0"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise SystemExit(f"the drill failed:\n{done.stderr[-2000:]}")
    return [each["seconds"] for each in json.loads(done.stdout)["faults"]]


def bare(folder: Path, kind: str, arguments: argparse.Namespace) -> Seconds:
    found = torchrun.campaign(
        folder, kind=kind, faults=arguments.faults, every=arguments.every, timeout=arguments.timeout
    )
    return [each.seconds for each in found if each.seconds is not None]


def summary(kind: str, contender: str, rounds: list[Seconds]) -> dict[str, Any]:
    """Of all rounds; `first` is the median of each job's first fault."""
    seconds = [each for one in rounds for each in one]
    return {
        "kind": kind,
        "contender": contender,
        "faults": len(seconds),
        "first": round(statistics.median(one[0] for one in rounds), 2),
        "p50": round(statistics.median(seconds), 2),
        "p95": round(percentile(seconds, 95.0), 2),
        "seconds": [[round(each, 2) for each in one] for one in rounds],
    }


def about_machine(arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "load": round(os.getloadavg()[2], 1),
        "checkpoint every": arguments.every,
        "timeout": arguments.timeout,
    }


def table(report: dict[str, Any]) -> str:
    about = ", ".join(f"{key} {value}" for key, value in report["machine"].items())
    lines = [f"Machine and job: {about}.", "", "Seconds without a finished step; x is torchrun's p50 over ours.", ""]
    lines += ["| fault | contender | faults | first | p50 | p95 | x |", "|---|---|---|---|---|---|---|"]
    results = {(each["kind"], each["contender"]): each for each in report["results"]}
    for (kind, contender), each in results.items():
        beside = results[kind, "torchrun"]["p50"] / each["p50"]
        figures = " | ".join(f"{each[key]:.1f}" for key in ("first", "p50", "p95"))
        lines.append(f"| {kind} | {contender} | {each['faults']} | {figures} | {beside:.2f} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
