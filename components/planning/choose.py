"""From a constraint and a number of processes to one layout, with the reason. Pure.

Called for each generation, by every rank's agent alike: the answer depends on its arguments alone. All layouts that
the constraint allows are listed, those that cannot work are dropped with the reason, and the rest are ranked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from shardline.components.common.config import RunConfig
from shardline.components.common.config.presets import ModelShape
from shardline.components.common.config.schema import Layout as Constraint
from shardline.components.common.config.schema import Training
from shardline.components.common.errors import UserError
from shardline.components.planning.estimate import Estimate, estimate
from shardline.components.planning.layout import Layout

#: Never fill a device further: above it fragmentation and communication buffers make runs fail (arXiv:2411.06465).
_MEMORY_SHARE = 0.8
_LISTED = 5
_REFUSED_LISTED = 3


@dataclass(frozen=True)
class Candidate:
    layout: Layout
    estimate: Estimate


@dataclass(frozen=True)
class Choice:
    """The layout to use, why, and the next best ones."""

    layout: Layout
    reason: str
    estimate: Estimate
    candidates: tuple[Candidate, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "layout": self.layout.to_json(),
            "reason": self.reason,
            "candidates": [
                {
                    "layout": candidate.layout.to_json(),
                    "efficiency": round(candidate.estimate.efficiency, 4),
                    "memory_bytes": candidate.estimate.memory,
                    "parameters": candidate.estimate.parameters,
                }
                for candidate in self.candidates[:_LISTED]
            ],
        }


def choose(config: RunConfig, *, world: int, vocab: int) -> Choice:
    """The best layout for `world` processes under `training.layout`.

    Args:
        vocab: tokens of the tokenizer.

    Raises:
        UserError: no layout fits, and why each was refused; or the model has no room for every token.
    """
    training, shape = config.training, config.model.shape(vocab)
    if shape.vocab < vocab:
        raise UserError(
            f"{shape.vocab} is less than the tokenizer's {vocab} tokens",
            where="model.vocab",
            hint="set tokenizer.url to the model's own"
            if config.model.url
            else f"leave it out, or set it to {vocab} or more",
        )
    memory = config.resources.memory
    refused: list[tuple[float, str]] = []
    candidates = []
    for layout in _allowed(training.layout, world=world, layers=shape.layers):
        problem = _problem(layout, shape=shape, training=training)
        if problem is None:
            candidate = Candidate(layout, estimate(shape, training=training, layout=layout))
            if memory is None or candidate.estimate.memory <= _MEMORY_SHARE * memory:
                candidates.append(candidate)
                continue
            problem = f"needs {candidate.estimate.memory / 2**30:.1f} GiB on a device"
        refused.append((_excess(layout, shape=shape, training=training), f"{layout}: {problem}"))
    if not candidates:
        raise UserError(
            f"no layout fits {world} processes" + (f" ({_nearest(refused)})" if refused else ""),
            where="training.layout",
            hint="set it to auto, or change resources.processes",
        )
    candidates.sort(key=_rank)
    best = candidates[0]
    return Choice(best.layout, _reason(best, candidates, world), best.estimate, tuple(candidates))


def _excess(layout: Layout, *, shape: ModelShape, training: Training) -> float:
    """How many times over the model's layers and the batch's microbatches a layout is, in the worse of the two."""
    microbatches = training.fewest_microbatches
    return max(layout.stages / shape.layers, layout.dp * (layout.stages if layout.pp > 1 else 1) / microbatches)


def _nearest(refused: list[tuple[float, str]]) -> str:
    """The layouts that were refused by the least, with the reasons."""
    shown = [text for _, text in sorted(refused)[:_REFUSED_LISTED]]
    more = len(refused) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more else "")


def _rank(candidate: Candidate) -> tuple[Any, ...]:
    layout, cost = candidate.layout, candidate.estimate
    # Equal in time: the one that holds less, and then the simpler one.
    return (-round(cost.efficiency, 6), cost.memory, layout.pp, layout.stages_per_rank, layout.dp_replicate)


def _reason(best: Candidate, candidates: list[Candidate], world: int) -> str:
    if len(candidates) == 1:
        return f"the only layout of {world} processes that training.layout allows"
    return (
        f"the least idle time ({1 - best.estimate.efficiency:.0%}), then the least memory, "
        f"of {len(candidates)} layouts of {world} processes"
    )


def _allowed(constraint: Constraint, *, world: int, layers: int) -> Iterator[Layout]:
    for pp in _values(constraint.pp, world):
        for dp_replicate in _values(constraint.dp_replicate, world // pp, default=1):
            for dp_shard in _values(constraint.dp_shard, world // pp // dp_replicate):
                if pp * dp_replicate * dp_shard == world:
                    for schedule, stages in _schedules(constraint, pp=pp, layers=layers):
                        yield Layout(
                            dp_replicate=dp_replicate,
                            dp_shard=dp_shard,
                            pp=pp,
                            schedule=schedule,
                            stages_per_rank=stages,
                        )


def _values(wanted: int | str, limit: int, *, default: int | None = None) -> list[int]:
    if isinstance(wanted, int):
        return [wanted]
    if default is not None:
        return [default]
    return [value for value in range(1, limit + 1) if limit % value == 0]


def _schedules(constraint: Constraint, *, pp: int, layers: int) -> Iterator[tuple[str, int]]:
    wanted = constraint.stages_per_rank
    if pp == 1:
        # Without a pipeline there is nothing to schedule.
        yield "1F1B", 1
        return
    if constraint.schedule in ("auto", "1F1B") and wanted in ("auto", 1):
        yield "1F1B", 1
    if constraint.schedule in ("auto", "Interleaved1F1B") and wanted != 1:
        counts = [wanted] if isinstance(wanted, int) else range(2, max(2, layers // pp) + 1)
        yield from (("Interleaved1F1B", count) for count in counts)


def _problem(layout: Layout, *, shape: ModelShape, training: Training) -> str | None:
    if layout.stages > shape.layers:
        return f"{layout.stages} stages for {shape.layers} layers"
    microbatches = training.fewest_microbatches
    if layout.dp > microbatches:
        return f"{layout.dp} data-parallel ranks for {microbatches} microbatches"
    rounds = layout.rounds(microbatches)
    if layout.pp > 1 and rounds < layout.stages:
        return f"{layout.stages} stages need as many microbatches on each data-parallel rank; there are {rounds}"
    if layout.stages_per_rank > 1 and rounds % (rounds // layout.pp):
        return (
            f"Interleaved1F1B runs microbatches in {rounds // layout.pp} equal rounds; there are {rounds} microbatches"
        )
    return None
