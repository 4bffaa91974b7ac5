"""What follows from a ledger: the run goes on, gives up, or does without a node. Pure: entries in, a decision out.

Called by the agents when a generation was lost, and by the launcher before it makes a job again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from shardline.components.common.config import RunConfig
from shardline.components.elasticity.budget.ledger import IN_ROW, IN_WINDOW, Entry, row


@dataclass(frozen=True, kw_only=True)
class Limits:
    """As `elastic` of the config has them.

    Attributes:
        max_restarts: losses, in a row and without a step saved in between, that are followed by another try.
        restart_window: seconds in which there may be `restarts_in_window` of them, with or without progress.
        set_aside_after: losses on the same node after which it is done without; 0: never.
    """

    max_restarts: int
    restart_window: int
    restarts_in_window: int
    set_aside_after: int

    @staticmethod
    def of(config: RunConfig) -> Limits:
        elastic = config.elastic
        return Limits(
            max_restarts=elastic.max_restarts,
            restart_window=elastic.restart_window,
            restarts_in_window=elastic.restarts_in_window,
            set_aside_after=elastic.set_aside_after,
        )


@dataclass(frozen=True, kw_only=True)
class Aside:
    """A node to do without.

    Attributes:
        entries: what speaks against it.
    """

    node: str
    reason: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What to do after the last of the entries.

    Attributes:
        spent: why no try is left, in words that go on from what happened; "": go on.
        in_a_row: losses without a step saved in between, the last one included.
        left: tries that are left before the run gives up, by either limit.
        aside: nodes to do without from now on.
    """

    spent: str
    in_a_row: int
    left: int
    aside: tuple[Aside, ...] = ()


def judge(
    entries: Sequence[Entry], limits: Limits, *, now: datetime, cleared: Mapping[str, datetime] | None = None
) -> Verdict:
    """The verdict after the last of `entries`, which are in the order in which it happened.

    Args:
        cleared: when a person last took nodes in again: what was before does not speak against them.
    """
    recent = _within(entries, limits.restart_window, now=now)
    in_row = len(row(entries)) if entries and entries[-1].cause in IN_ROW else 0
    in_window = sum(entry.cause in IN_WINDOW for entry in recent)
    left = min(limits.max_restarts - in_row, limits.restarts_in_window - in_window)
    return Verdict(
        spent=_spent(in_row, in_window, limits),
        in_a_row=in_row,
        left=max(0, left),
        aside=tuple(_aside(recent, limits, cleared=cleared or {})),
    )


def _within(entries: Sequence[Entry], seconds: int, *, now: datetime) -> list[Entry]:
    since = now - timedelta(seconds=seconds)
    return [entry for entry in entries if entry.at > since]


def _spent(in_row: int, in_window: int, limits: Limits) -> str:
    if in_row > limits.max_restarts:
        times = f"{_times(in_row)} in a row without a step saved in between" if in_row > 1 else "at the first loss"
        return f"elastic.max_restarts ({limits.max_restarts}) is used up, {times}"
    if in_window > limits.restarts_in_window:
        times = f"{_times(in_window)} in {_duration(limits.restart_window)}"
        return f"elastic.restarts_in_window ({limits.restarts_in_window}) is used up, {times}"
    return ""


def _aside(recent: Sequence[Entry], limits: Limits, *, cleared: Mapping[str, datetime]) -> list[Aside]:
    """Nodes of the last entry that failed often enough, and more often than any other: else it is not the node."""
    if not recent or not limits.set_aside_after:
        return []
    against: dict[str, list[Entry]] = {}
    for entry in recent:
        for node in entry.nodes():
            if node not in cleared or entry.at > cleared[node]:
                against.setdefault(node, []).append(entry)
    counts = Counter({node: len(found) for node, found in against.items()})
    found = []
    for node in sorted(recent[-1].nodes()):
        others = max((count for name, count in counts.items() if name != node), default=0)
        if counts[node] >= limits.set_aside_after and counts[node] > others:
            found.append(Aside(node=node, reason=_against(against[node], limits), entries=tuple(against[node])))
    return found


def _against(entries: Sequence[Entry], limits: Limits) -> str:
    window = _duration(limits.restart_window)
    return f"{len(entries)} losses in {window} were on it or on its processes, the last: {entries[-1].reason}"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number:,} times"


def _duration(seconds: int) -> str:
    for name, length in (("h", 3600), ("min", 60)):
        if seconds % length == 0:
            return f"{seconds // length:,} {name}"
    return f"{seconds:,} s"
