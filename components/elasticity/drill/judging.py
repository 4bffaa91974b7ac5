"""What a disturbed run recorded, judged: how long it stood still, what it did again, whether its samples are exact.

Called by `conduct` and by whoever ends a drill. Pure: records of a run's streams in, numbers and sentences out.

Time without a finished step is the longest time between two optimizer steps, one finished after the other, of which the
later one came after the fault and the earlier one before the next fault. Both are times of the run itself: the clock of
whoever makes the faults only says which fault it was. Steps that a killed process had finished and not yet recorded,
at most `monitoring.flush_seconds` of them, make that time seem longer than it was, never shorter.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

from shardline.components.common.streams import by_step

Record = Mapping[str, Any]
#: For an optimizer step: the samples of each of its microbatches.
Samples = Mapping[int, Sequence[int]]
#: How many differences are told one by one.
_TOLD = 5
#: DESIGN: in float64 losses agree to 1e-12; as many units in the last place in the other precisions, whose losses and
#: parameters are float32.
_CLOSEST = {"fp64": 1e-12}
_CLOSEST_FLOAT32 = 1e-12 * 2.0**29
#: How much further from an undisturbed run a disturbed one may be than another undisturbed one of another layout.
_TIMES = 10.0


@dataclass(frozen=True, kw_only=True)
class Struck:
    """A fault that was made: to whom, in words, and when (seconds since 1970)."""

    number: int
    kind: str
    victim: str
    time: float


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """What a fault cost.

    Attributes:
        seconds: the longest time without a finished step; None when no step was finished after it.
        anew: optimizer steps done again.
        generations: of workers that were formed after it, and finished a step.
        shared: it is the same time as that of the fault before, which the run was still recovering from.
    """

    fault: Struck
    seconds: float | None
    anew: int
    generations: int
    shared: bool


def recoveries(faults: Sequence[Struck], metrics: Iterable[Record]) -> list[Recovery]:
    """What each of `faults`, in the order of their times, cost.

    Args:
        metrics: the run's records of optimizer steps, of all generations.
    """
    records = [(seconds_of(record), record) for record in metrics]
    gaps = list(pairwise(sorted(time for time, _ in records)))
    begun = _begun(records)
    found: list[Recovery] = []
    before: tuple[float, float] | None = None
    for fault, following in zip(faults, [*(each.time for each in faults[1:]), math.inf], strict=True):
        during = [gap for gap in gaps if gap[1] > fault.time and gap[0] < following]
        longest = max(during, key=lambda gap: gap[1] - gap[0], default=None)
        mine = [anew for time, anew in begun if fault.time < time <= following]
        found.append(
            Recovery(
                fault=fault,
                seconds=longest[1] - longest[0] if longest else None,
                anew=sum(mine),
                generations=len(mine),
                shared=longest is not None and longest == before,
            )
        )
        before = longest
    return found


def _begun(records: Sequence[tuple[float, Record]]) -> list[tuple[float, int]]:
    """For each generation: when it had finished its first step, and how many steps it did that were done before."""
    generations: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for time, record in records:
        generations[record["generation"]].append((record["data"]["step"], time))
    found, done = [], 0
    for _, steps in sorted(generations.items()):
        first, last = min(steps)[0], max(steps)[0]
        found.append((min(time for _, time in steps), max(0, min(done, last + 1) - first)))
        done = max(done, last + 1)
    return found


def figures(found: Sequence[Recovery]) -> dict[str, Any]:
    """Of the times without a finished step, in seconds: the first, the median, the 95th percentile and the longest.

    A time that several faults share counts once.
    """
    seconds = [each.seconds for each in found if each.seconds is not None and not each.shared]
    if not seconds:
        return {"count": 0, "first": None, "p50": None, "p95": None, "longest": None}
    return {
        "count": len(seconds),
        "first": seconds[0],
        "p50": statistics.median(seconds),
        "p95": percentile(seconds, 95.0),
        "longest": max(seconds),
    }


def percentile(values: Sequence[float], percent: float) -> float:
    """By the nearest rank: a value that occurred, at or above which few enough others are."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent / 100.0 * len(ordered)) - 1)]


def sample_problems(
    records: Iterable[Record], *, expected: Callable[[int], Samples], steps: int, all_generations: bool = True
) -> list[str]:
    """What is wrong with the samples that a run recorded for its first `steps` optimizer steps; empty: nothing is.

    Of a step that was done again the highest generation counts: it has to have computed every microbatch once.

    Args:
        expected: the samples of a step, as an undisturbed run uses them.
        all_generations: also look at what earlier generations recorded of steps that were done again, whose
            microbatches may be missing but not be others. False for a run that rolled back, which changes samples.
    """
    found: dict[int, dict[int, dict[int, list[list[int]]]]] = defaultdict(dict)
    for record in records:
        data = record["data"]
        microbatches = found[data["step"]].setdefault(record["generation"], {})
        microbatches.setdefault(data["microbatch"], []).append(list(data["indices"]))
    problems = []
    for step in range(steps):
        wanted = expected(step)
        generations = found.get(step, {})
        if not generations:
            problems.append(f"step {step}: no sample is recorded")
            continue
        newest = max(generations)
        for generation in sorted(generations) if all_generations else [newest]:
            problems += _step_problems(
                generations[generation],
                wanted,
                where=f"step {step} of generation {generation}",
                whole=generation == newest,
            )
    if len(problems) > _TOLD:
        problems = [*problems[:_TOLD], f"and {len(problems) - _TOLD} more"]
    return problems


def _step_problems(found: Mapping[int, list[list[int]]], wanted: Samples, *, where: str, whole: bool) -> list[str]:
    problems = []
    for number in sorted(wanted.keys() | found.keys()):
        recorded = found.get(number, [])
        if len(recorded) > 1:
            problems.append(f"{where}: microbatch {number} was computed {len(recorded)} times")
        elif not recorded and whole:
            problems.append(f"{where}: microbatch {number} is lost, with samples {list(wanted[number])}")
        elif recorded and recorded[0] != list(wanted.get(number, [])):
            problems.append(
                f"{where}: microbatch {number} has samples {recorded[0]} instead of {list(wanted.get(number, []))}"
            )
    return problems


def recorded_samples(records: Iterable[Record]) -> Callable[[int], Samples]:
    """The samples of each step as another run recorded them, for `sample_problems`."""
    newest: dict[int, int] = {}
    found: dict[int, dict[int, list[int]]] = defaultdict(dict)
    for record in sorted(records, key=lambda record: int(record["generation"])):
        data, step = record["data"], int(record["data"]["step"])
        if newest.get(step) != record["generation"]:
            newest[step] = record["generation"]
            found[step] = {}
        found[step][data["microbatch"]] = data["indices"]
    return lambda step: found.get(step, {})


def losses(records: Iterable[dict[str, Any]], *, steps: int) -> list[float]:
    """The loss of each of the first `steps` optimizer steps, of the highest generation; not a number where none is."""
    found = {record["data"]["step"]: float(record["data"]["loss"]) for record in by_step(records)}
    return [found.get(step, math.nan) for step in range(steps)]


def difference(first: Sequence[float], second: Sequence[float]) -> float:
    """The largest difference between two loss curves; infinite where one of them has no number and the other has."""
    largest = 0.0
    for one, other in zip(first, second, strict=True):
        if math.isnan(one) and math.isnan(other):
            return math.inf
        if one != other:
            distance = abs(one - other)
            largest = max(largest, distance if math.isfinite(distance) else math.inf)
    return largest


def loss_bound(undisturbed: float | None, *, precision: str) -> float:
    """How far the losses of a disturbed run may be from those of an undisturbed one.

    Args:
        undisturbed: the largest difference between two undisturbed runs of different layouts; None: not known.
        precision: `training.precision`.
    """
    return max(_CLOSEST.get(precision, _CLOSEST_FLOAT32), _TIMES * (undisturbed or 0.0))


def seconds_of(record: Record) -> float:
    """When `record` was made, in seconds since 1970."""
    return datetime.fromisoformat(record["time"]).timestamp()
