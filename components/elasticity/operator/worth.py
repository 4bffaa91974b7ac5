"""What another worker adds, learned from what a run did with each number of workers. Pure.

Called by `pictures`. The model is the simplest that measurements can contradict: between two numbers of workers that
were both tried, each further worker added the difference in tokens a second divided by their number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

#: Steps that a generation begins with and that are not counted: the first ones warm up.
_WARM_UP = 3
#: Steps without which a generation says nothing, and the most that are looked at.
_LEAST_STEPS = 5
_MOST_STEPS = 50


@dataclass(frozen=True)
class Worth:
    """The most workers that pay, and how that is known."""

    workers: int
    reason: str


class Speeds:
    """Tokens a second by the number of workers, from the metrics of a run as they come."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        self._steps: dict[int, deque[float]] = {}

    def add(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Take in records of the run's metrics."""
        for record in records:
            data, generation = record["data"], int(record["generation"])
            if record["name"] != "train" or not isinstance(data.get("seconds"), int | float):
                continue
            self._seen[generation] = self._seen.get(generation, 0) + 1
            seconds = float(data["seconds"]) - float(data.get("save_seconds") or 0)
            if self._seen[generation] > _WARM_UP and seconds > 0:
                steps = self._steps.setdefault(generation, deque(maxlen=_MOST_STEPS))
                steps.append(float(data["tokens"]) / seconds)

    def by_workers(self, worlds: Mapping[int, int], *, processes: int) -> dict[int, float]:
        """The median of the newest generation of each number of workers.

        Args:
            worlds: the number of processes of each generation.
            processes: of a worker.
        """
        found: dict[int, float] = {}
        for generation in sorted(self._steps):
            world = worlds.get(generation, 0)
            if world and world % processes == 0 and len(self._steps[generation]) >= _LEAST_STEPS:
                found[world // processes] = median(self._steps[generation])
        return found


def worth(speeds: Mapping[int, float], *, gain: float) -> Worth | None:
    """Where more workers have not paid; None while all that was tried did.

    Args:
        speeds: tokens a second by the number of workers.
        gain: as in `Settings`.
    """
    for fewer, more in pairwise(sorted(speeds)):
        each, before = (speeds[more] - speeds[fewer]) / (more - fewer), speeds[fewer] / fewer
        if each < gain * before:
            share = max(0.0, each / before)
            return Worth(
                fewer,
                f"{more} workers did {speeds[more]:,.0f} tokens/s and {fewer} did {speeds[fewer]:,.0f}: each further "
                f"one added {share:.0%} of what a worker did before, and {gain:.0%} is asked for",
            )
    return None
