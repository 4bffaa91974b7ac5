"""Which faults a drill makes, when, and to whom: a function of a seed alone. Pure.

Called by `conduct`. A fault names nobody: who is there when it strikes is known only then, so it holds numbers from
0 to 1 by which victims are picked.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

#: What can be done to processes of this machine.
LOCAL: Mapping[str, str] = {
    "worker": "a worker is killed",
    "hang": "a worker is stopped, and never goes on",
    "agent": "an agent is killed",
    "leader": "the agent that leads is killed",
    "server": "the process that forks an agent's workers is killed",
    "two": "two agents or workers are killed at once",
    "all": "all agents are killed at once",
    "terminate": "an agent gets SIGTERM",
    "pause": "an agent is stopped for some seconds, and goes on",
    "join": "an agent comes to others that train",
}
#: Those that need several agents, of which the drill may start another one.
TAKES_AGENTS = ("join",)
#: What can be done to the pods of a cluster.
CLUSTER: Mapping[str, str] = {
    "pod": "a worker's pod is deleted",
    "pod-force": "a worker's pod is deleted without grace",
    "evict": "a worker's pod is evicted",
    "leader": "the pod whose agent leads is deleted without grace",
    "two": "two pods are deleted without grace at once",
    "all": "all pods are deleted without grace at once",
}
#: An early fault comes within so many seconds of the one before: recovery takes some of them.
_EARLY_SECONDS = 10.0
_PAUSE_SECONDS = (0.5, 10.0)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One of a drill's faults.

    Attributes:
        number: from 1.
        wait: seconds before it strikes, since the run recovered from the fault before; `early`: since that struck.
        picks: numbers in [0, 1), one for each victim that it may take.
        seconds: how long it lasts, where it ends by itself.
    """

    number: int
    kind: str
    wait: float
    early: bool
    picks: tuple[float, float]
    seconds: float


def plan(kinds: Sequence[str], *, seed: int, every: float, early: float) -> Iterator[Fault]:
    """Faults without an end; every kind has come once before any comes again.

    Args:
        every: seconds between the end of one and the next, on average.
        early: the part of them, from 0 to 1, that does not wait for the end of the one before.
    """
    chance = random.Random(seed)
    number = 0
    while True:
        for kind in chance.sample(kinds, len(kinds)):
            number += 1
            hurried = chance.random() < early and number > 1
            yield Fault(
                number=number,
                kind=kind,
                wait=chance.uniform(0.0, _EARLY_SECONDS) if hurried else every * chance.uniform(0.5, 1.5),
                early=hurried,
                picks=(chance.random(), chance.random()),
                seconds=chance.uniform(*_PAUSE_SECONDS),
            )


def pick(victims: Sequence[T], picks: Sequence[float]) -> list[T]:
    """One of `victims` for each pick, none twice; fewer where there are fewer."""
    left, found = list(victims), []
    for number in picks:
        if left:
            found.append(left.pop(int(number * len(left))))
    return found
