"""What a group of many agents asks of the API server, in virtual time: `python -m benchmarks.agents --agents 4096`.

For each size: calls a second while nothing happens but a snapshot every minute, and how long it takes from the start,
and from the loss of a worker, of an agent and of the leader, until a generation of all that are left trains. Results go
to `--out` as JSON and Markdown.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.agents.group import Agent, Group
from benchmarks.agents.world import Tally

#: What is lost, and whether the API server hears of it: with a pod its Lease goes, with a node all stays as it was.
FAULTS = ("a worker", "an agent's pod", "an agent's node", "the leader's pod", "the leader's node")
_MOST_SECONDS = 1800.0


def main() -> None:
    arguments = parse_arguments()
    results = []
    for count in arguments.agents:
        results.append(measure(count, within=arguments.within, steady=arguments.steady, seed=arguments.seed))
        print(f"{count} agents: {json.dumps(results[-1])}", file=sys.stderr, flush=True)
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    (out / "results.md").write_text(table(results))
    print(table(results))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, nargs="+", default=[16, 256, 1024, 4096])
    parser.add_argument("--within", type=float, default=30.0, help="seconds in which they are started")
    parser.add_argument("--steady", type=float, default=120.0, help="seconds for which nothing happens")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default="benchmarks/agents/results", help="folder for the results")
    return parser.parse_args()


def measure(count: int, *, within: float, steady: float, seed: int = 1) -> dict[str, Any]:
    """The figures of a group of `count` agents.

    Raises:
        AssertionError: two led at once.
        TimeoutError: a generation did not come about.
    """
    group = Group(count, within=within, seed=seed)
    phases = {"start": _phase(group, lambda: None, members=count)}
    pass_by(group, steady / 2)  # what the first generation leaves behind
    phases["steady"] = _steady(group, steady)
    for fault in FAULTS:
        phases[fault] = _phase(group, lambda fault=fault: _harm(group, fault), members=None)  # type: ignore[misc]
        pass_by(group, 2 * group.leader.seat.board.beat_seconds)
    return {"agents": count, "beat": group.leader.seat.board.beat_seconds, "phases": phases}


def pass_by(group: Group, seconds: float) -> None:
    end = group.world.now + seconds
    group.world.run(lambda: group.world.now >= end, most=_MOST_SECONDS)


def _harm(group: Group, fault: str) -> None:
    victim = group.leader if "leader" in fault else _another(group)
    if fault == "a worker":
        group.kill_worker(victim)
    else:
        group.lose(victim, pod="pod" in fault)


def _another(group: Group) -> Agent:
    """One in the middle that does not lead."""
    living = [each for each in group.agents if each.lives and not each.leads]
    return living[len(living) // 2]


def _steady(group: Group, seconds: float) -> dict[str, Any]:
    tally = group.api.tally = Tally()
    begun = int(group.world.now) + 1
    pass_by(group, seconds + 1)
    calls: Counter[str] = Counter()
    for second in range(begun, begun + int(seconds)):
        calls.update(tally.calls[second])
    told = sum(tally.events[second] for second in range(begun, begun + int(seconds)))
    return {
        "calls": {verb: round(number / seconds, 1) for verb, number in sorted(calls.items())},
        "mean": round(sum(calls.values()) / seconds, 1),
        "events": round(told / seconds, 1),
        **_worst(tally),
        "megabytes": round(sum(tally.bytes.values()) / seconds / 1e6, 2),
    }


def _phase(group: Group, begin: Any, *, members: int | None) -> dict[str, Any]:
    """From what `begin` does until all that are left train in a later generation."""
    tally, before = Tally(), group.generation
    group.api.tally = tally
    begin()
    left = sum(each.lives for each in group.agents) if members is None else members
    seconds = group.world.run(lambda: group.trains(left, after=before), most=_MOST_SECONDS)
    return {"seconds": round(seconds, 1), "generations": group.generation - before, **_worst(tally)}


def _worst(tally: Tally) -> dict[str, Any]:
    """The second with the most calls, and that with the most bytes."""
    second = max(tally.calls, key=tally.total)
    return {
        "worst": tally.total(second),
        "worst_calls": dict(sorted(tally.calls[second].items())),
        "worst_megabytes": round(max(tally.bytes.values()) / 1e6, 2),
    }


def table(results: list[dict[str, Any]]) -> str:
    lines = ["Steady, a snapshot every minute; calls, events and megabytes a second:", ""]
    lines += ["| agents | beat, s | calls | of these | worst second | events | MB | worst MB |", "|---|" + "---|" * 7]
    for each in results:
        steady = each["phases"]["steady"]
        calls = ", ".join(f"{verb} {number}" for verb, number in steady["calls"].items())
        row = (each["agents"], round(each["beat"], 1), steady["mean"], calls, steady["worst"])
        row = (*row, steady["events"], steady["megabytes"], steady["worst_megabytes"])
        lines.append("| " + " | ".join(map(str, row)) + " |")
    lines += ["", "Seconds until all that are left train, and in brackets the calls of the worst second:", ""]
    lines += ["| agents | the start | " + " | ".join(FAULTS) + " |", "|---|---|" + "---|" * len(FAULTS)]
    for each in results:
        phases = [each["phases"][name] for name in ("start", *FAULTS)]
        lines.append(
            f"| {each['agents']} | " + " | ".join(f"{one['seconds']} ({one['worst']})" for one in phases) + " |"
        )
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
