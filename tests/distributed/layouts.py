"""Enumerates layouts, and picks few of them that still put every kind of parallelism beside every other.

A layout has *features*: the axes that it uses, its schedule, its recomputation, and whether data-parallel ranks have
uneven numbers of microbatches. Mistakes come where two features meet, so the choice covers every pair of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product

from shardline.components.common.config import RunConfig
from shardline.components.common.config.schedules import SCHEDULES
from shardline.components.common.config.training_schema import Layout as Constraint
from shardline.components.common.errors import UserError
from shardline.components.planning.choose import choose
from shardline.components.planning.layout import Layout

MOST_PROCESSES = 8
_SIZES = (1, 2, 3, 4)
#: With tensor parallelism a run takes ten times as long as without, so it meets one schedule of each kind.
_WITH_TP = {"tp", "1F1B", "ZBVZeroBubble"}

Pair = frozenset[str]


def every_layout(config: RunConfig) -> Iterator[Layout]:
    """All layouts of up to `MOST_PROCESSES` processes that the planner takes, the smallest first."""
    axes = [sizes for sizes in product(_SIZES, repeat=5) if 1 < _product(sizes) <= MOST_PROCESSES]
    for sizes in sorted(axes, key=_product):
        values = dict(zip(("dp_replicate", "dp_shard", "tp", "cp", "pp"), sizes, strict=True))
        for schedule in SCHEDULES if values["pp"] > 1 else ("1F1B",):
            for recompute in ("none", "selective", "full"):
                wanted = Constraint(**values, schedule=schedule, recompute=recompute)
                fixed = config.model_copy(update={"training": config.training.model_copy(update={"layout": wanted})})
                try:
                    yield choose(fixed, world=_product(sizes), vocab=400).layout
                except UserError:
                    continue


def _product(sizes: tuple[int, ...]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


def features(layout: Layout, *, microbatches: int) -> set[str]:
    found = {name for name in ("dp_replicate", "dp_shard", "tp", "cp") if getattr(layout, name) > 1}
    if layout.pp > 1:
        found |= {"pp", layout.schedule}
    if layout.pp > 2:
        found.add("deep")
    if layout.recompute != "none":
        found.add(layout.recompute)
    if microbatches % layout.dp:
        found.add("uneven")
    return found


def pairs(layout: Layout, *, microbatches: int) -> set[Pair]:
    """The features of a layout two by two, and each alone."""
    names = features(layout, microbatches=microbatches)
    found = {frozenset(pair) for pair in combinations(sorted(names), 2)} | {frozenset([name]) for name in names}
    return {pair for pair in found if not _spared(pair)}


def _spared(pair: Pair) -> bool:
    return "tp" in pair and bool(pair & SCHEDULES.keys()) and not pair <= _WITH_TP


def covering(layouts: list[Layout], *, microbatches: int) -> list[Layout]:
    """Some of `layouts` that have every pair of features that any of them has: greedily, the cheapest for each."""
    missing = set().union(*(pairs(layout, microbatches=microbatches) for layout in layouts))
    chosen = []
    while missing:
        best = max(layouts, key=lambda layout: len(pairs(layout, microbatches=microbatches) & missing) / _cost(layout))
        chosen.append(best)
        missing -= pairs(best, microbatches=microbatches)
    return chosen


def _cost(layout: Layout) -> float:
    return (1 + layout.world) * (4 if layout.tp > 1 else 1)
