"""From a constraint and a number of processes to one layout, with the reason. Pure.

Called for each generation, by every rank's agent alike: the answer depends on its arguments alone. All layouts that
the constraint allows are listed, those that cannot work are dropped with the reason, and the rest are ranked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from shardline.components.common.config import RunConfig
from shardline.components.common.config.presets import ModelShape
from shardline.components.common.config.schedules import SCHEDULES, microbatches_problem, split_backward_problem
from shardline.components.common.config.training_schema import Layout as Constraint
from shardline.components.common.config.training_schema import Training
from shardline.components.common.errors import UserError
from shardline.components.planning.estimate import RECOMPUTATIONS, Estimate, estimate
from shardline.components.planning.layout import Layout

#: Never fill a device further: above it fragmentation and communication buffers make runs fail (arXiv:2411.06465).
_MEMORY_SHARE = 0.8
#: What `auto` takes: the schedules whose backward pass is split gain only where its two halves cost the same.
_AUTO_SCHEDULES = ("1F1B", "Interleaved1F1B")
#: The largest tensor-parallel group that `auto` forms: the devices of one machine.
_MOST_TP = 8
#: Tokens below which `auto` doesn't cut the sequence further: less than that is exchanged for too little work.
_LEAST_TOKENS = 2048
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

    Tensor and context parallelism exchange data in every layer: where `auto` leaves them open, they are considered
    only when no layout without them fits, tensor parallelism first.

    Args:
        vocab: tokens of the tokenizer.

    Raises:
        UserError: no layout fits, and why each was refused; or the model has no room for every token.
    """
    shape = config.model.shape(vocab)
    if shape.vocab < vocab:
        raise UserError(
            f"{shape.vocab} is less than the tokenizer's {vocab} tokens",
            where="model.vocab",
            hint="set tokenizer.url to the model's own"
            if config.model.url
            else f"leave it out, or set it to {vocab} or more",
        )
    refused: dict[Layout, tuple[float, str]] = {}
    for most_tp, most_cp in ((1, 1), (_MOST_TP, 1), (_MOST_TP, _most_cp(config))):
        candidates = []
        for layout in _allowed(config.training.layout, world=world, layers=shape.layers, most=(most_tp, most_cp)):
            found = _fitting(layout, shape=shape, config=config)
            if isinstance(found, Candidate):
                candidates.append(found)
            else:
                refused[layout] = (_excess(layout, shape=shape, training=config.training), f"{layout}: {found}")
        if candidates:
            candidates.sort(key=_rank)
            best = candidates[0]
            reason = _reason(best, candidates, world)
            if config.training.layout.recompute == "auto" and best.layout.recompute != "none":
                reason += f"; recompute={best.layout.recompute} is the least that fits"
            return Choice(best.layout, reason, best.estimate, tuple(candidates))
    raise UserError(
        f"no layout fits {world} processes" + (f" ({_nearest(list(refused.values()))})" if refused else ""),
        where="training.layout",
        hint="set it to auto, or change resources.processes",
    )


def fits(config: RunConfig, *, world: int, vocab: int) -> bool:
    """Whether there is a layout for `world` processes."""
    try:
        choose(config, world=world, vocab=vocab)
    except UserError:
        return False
    return True


def _fitting(layout: Layout, *, shape: ModelShape, config: RunConfig) -> Candidate | str:
    """The layout with the least recomputation that fits, or why none does."""
    training, memory = config.training, config.resources.memory
    problem = _problem(layout, shape=shape, config=config)
    if problem is not None:
        return problem
    wanted = training.layout.recompute
    for recompute in RECOMPUTATIONS if wanted == "auto" else (wanted,):
        candidate = replace(layout, recompute=recompute)
        backward = split_backward_problem(candidate.schedule, recompute=recompute, compiled=training.compile)
        if backward is not None:
            problem = problem or backward
            continue
        cost = estimate(shape, training=training, layout=candidate)
        if memory is None or cost.memory <= _MEMORY_SHARE * memory:
            return Candidate(candidate, cost)
        problem = f"needs {cost.memory / 2**30:.1f} GiB on a device"
    return str(problem)


def _most_cp(config: RunConfig) -> int:
    return max(1, min(stage.sequence for stage in config.training.every_stage()) // _LEAST_TOKENS)


def _excess(layout: Layout, *, shape: ModelShape, training: Training) -> float:
    """How many times over the model's layers and the batch's microbatches a layout is, in the worse of the two."""
    microbatches = training.fewest_microbatches
    return max(layout.stages / shape.layers, layout.dp * layout.pp / microbatches)


def _nearest(refused: list[tuple[float, str]]) -> str:
    """The layouts that were refused by the least, with the reasons."""
    shown = [text for _, text in sorted(refused)[:_REFUSED_LISTED]]
    more = len(refused) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more else "")


def _rank(candidate: Candidate) -> tuple[Any, ...]:
    layout, cost = candidate.layout, candidate.estimate
    # Equal in idle time: the one that exchanges less, then the one that holds less, and then the simpler one.
    exchanges = layout.tp * layout.cp
    return (-round(cost.efficiency, 6), exchanges, cost.memory, layout.pp, layout.stages_per_rank, layout.dp_replicate)


def _reason(best: Candidate, candidates: list[Candidate], world: int) -> str:
    if len(candidates) == 1:
        return f"the only layout of {world} processes that fits training.layout"
    return (
        f"the least idle time ({1 - best.estimate.efficiency:.0%}), then the least memory, "
        f"of {len(candidates)} layouts of {world} processes"
    )


def _allowed(constraint: Constraint, *, world: int, layers: int, most: tuple[int, int]) -> Iterator[Layout]:
    """Every layout of `world` processes under `constraint`, with at most `most` (tp, cp) where those are open."""
    for pp, schedule, stages in _pipelines(constraint, world=world, layers=layers):
        for tp in _values(constraint.tp, world // pp, most=most[0]):
            for cp in _values(constraint.cp, world // pp // tp, most=most[1]):
                left = world // pp // tp // cp
                for dp_replicate in _values(constraint.dp_replicate, left, most=1):
                    for dp_shard in _values(constraint.dp_shard, left // dp_replicate):
                        if pp * tp * cp * dp_replicate * dp_shard == world:
                            yield Layout(
                                dp_replicate=dp_replicate,
                                dp_shard=dp_shard,
                                tp=tp,
                                cp=cp,
                                pp=pp,
                                schedule=schedule,
                                stages_per_rank=stages,
                                reshard=constraint.reshard is not False,
                            )


def _values(wanted: int | str, limit: int, *, most: int | None = None) -> list[int]:
    """The sizes that an axis may have: `wanted`, or if that is auto the divisors of `limit` up to `most`."""
    if isinstance(wanted, int):
        return [wanted] if wanted <= limit else []
    return [value for value in range(1, min(limit, most or limit) + 1) if limit % value == 0]


def _pipelines(constraint: Constraint, *, world: int, layers: int) -> Iterator[tuple[int, str, int]]:
    """(pp, schedule, stages on each rank)."""
    for pp in _values(constraint.pp, world):
        if pp == 1:
            # Without a pipeline there is nothing to schedule.
            yield 1, "1F1B", 1
            continue
        for schedule in _AUTO_SCHEDULES if constraint.schedule == "auto" else (constraint.schedule,):
            rule = SCHEDULES[schedule]
            most = rule.most_stages or max(rule.least_stages, layers // pp)
            for stages in range(rule.least_stages, most + 1):
                if constraint.stages_per_rank in ("auto", stages):
                    yield pp, schedule, stages


def _problem(layout: Layout, *, shape: ModelShape, config: RunConfig) -> str | None:
    """Why `layout` can't be, however large the devices; None if it can."""
    training = config.training
    if layout.stages > shape.layers:
        return f"{layout.stages} stages for {shape.layers} layers"
    microbatches = training.fewest_microbatches
    if layout.dp > microbatches:
        return f"{layout.dp} data-parallel ranks for {microbatches} microbatches"
    if layout.tp > 1 and config.model.class_:
        return f"tp does not know how to share the weights of {config.model.class_}: use dp_shard, cp or pp"
    if layout.tp > 1 and training.precision == "float8":
        return "tp does not go with float8: use dp_shard, cp or pp, or take bf16"
    if training.compile and layout.tp > 1:
        return "torch 2.13 can't compile layers whose weights are shared by tp: set training.compile to false"
    if layout.pp > 1:
        if training.layout.reshard is True:
            return "reshard must be auto or false in a pipeline"
        for batch in {stage.global_batch for stage in training.every_stage()}:
            rounds = layout.rounds(batch // training.microbatch)
            problem = microbatches_problem(layout.schedule, pp=layout.pp, microbatches=rounds)
            if problem:
                return problem
    return _indivisible(layout, shape=shape, config=config)


def _indivisible(layout: Layout, *, shape: ModelShape, config: RunConfig) -> str | None:
    """What the tensor and context axes don't divide.

    The vocabulary is not padded to fit: rows that no token has take part in the softmax, so the model would depend on
    the layout. Who wants such rows sets model.vocab, which is part of what the run is.
    """
    widths = {
        "attention heads": shape.heads,
        "key and value heads": shape.kv_heads,
        "hidden units": shape.hidden,
        "tokens of the vocabulary": shape.vocab,
    }
    for name, size in widths.items():
        if size % layout.tp:
            advice = ": set model.vocab to a multiple" if name.endswith("vocabulary") else ""
            return f"tp={layout.tp} does not divide {size} {name}{advice}"
    for sequence in sorted({config.block, *(stage.sequence for stage in config.training.every_stage())}):
        # Each context-parallel rank takes a chunk from either end: see training's `context`.
        if layout.cp > 1 and sequence % (2 * layout.cp):
            return f"cp={layout.cp} needs sequences that 2 x {layout.cp} divides, not {sequence} tokens"
        if sequence // layout.cp % layout.tp:
            return f"tp={layout.tp} does not divide {sequence // layout.cp} tokens"
    return None
