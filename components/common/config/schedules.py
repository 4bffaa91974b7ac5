"""Pipeline schedules: what each asks of stages and microbatches. Pure data, and the rules of torch 2.13's runtime.

Called by the config's rules, by the planner and by training. Looped, stage s lies on pipeline rank s mod p;
a V goes down the ranks and back up, stages r and 2p-1-r on rank r, so that the first and the last stage share one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ScheduleName = Literal[
    "GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"
]


@dataclass(frozen=True, kw_only=True)
class ScheduleRule:
    """What a schedule is like.

    Attributes:
        least_stages, most_stages: on each pipeline rank; None: as many as there are layers for.
        v_shaped: stages are placed as a V, else looped.
        splits_backward: gradients of inputs and of weights are computed apart, the latter where the rank would be idle.
    """

    least_stages: int = 1
    most_stages: int | None = 1
    v_shaped: bool = False
    splits_backward: bool = False


SCHEDULES: dict[str, ScheduleRule] = {
    "GPipe": ScheduleRule(),  # arXiv:1811.06965
    "1F1B": ScheduleRule(),  # arXiv:1806.03377
    "Interleaved1F1B": ScheduleRule(least_stages=2, most_stages=None),  # arXiv:2104.04473
    "LoopedBFS": ScheduleRule(least_stages=2, most_stages=None),  # arXiv:2211.05953
    "InterleavedZeroBubble": ScheduleRule(least_stages=2, most_stages=None, splits_backward=True),  # arXiv:2401.10241
    "ZBVZeroBubble": ScheduleRule(least_stages=2, most_stages=2, v_shaped=True, splits_backward=True),
    "DualPipeV": ScheduleRule(least_stages=2, most_stages=2, v_shaped=True, splits_backward=True),  # arXiv:2412.19437
}


def stages_problem(schedule: str, stages_per_rank: int) -> str | None:
    """Why a schedule can't have that many stages on each pipeline rank; None if it can."""
    rule = SCHEDULES[schedule]
    if rule.least_stages <= stages_per_rank <= (rule.most_stages or stages_per_rank):
        return None
    wanted = f"at least {rule.least_stages}" if rule.most_stages is None else str(rule.least_stages)
    return f"must be {wanted} with schedule {schedule}"


def split_backward_problem(schedule: str, *, recompute: str, compiled: bool) -> str | None:
    """What can't go with a schedule that splits the backward pass; None if nothing is in its way."""
    if not SCHEDULES[schedule].splits_backward:
        return None
    if recompute == "selective":
        return f"{schedule} splits the backward pass, and what is recomputed selectively can go backward only once"
    if compiled:
        return f"{schedule} splits the backward pass, and a compiled layer's can't be"
    return None


def microbatches_problem(schedule: str, *, pp: int, microbatches: int) -> str | None:
    """Why a pipeline of `pp` ranks can't run that many microbatches; None if it can.

    Args:
        microbatches: of each data-parallel rank, in an optimizer step.
    """
    there = f"on each data-parallel rank; there are {microbatches}"
    least = {"1F1B": pp, "Interleaved1F1B": pp, "InterleavedZeroBubble": pp, "DualPipeV": 2 * pp}.get(schedule, 1)
    if microbatches < least:
        return f"{schedule} on {pp} pipeline ranks needs at least {least} microbatches {there}"
    rounds = microbatches // pp
    if schedule in ("Interleaved1F1B", "InterleavedZeroBubble") and microbatches % rounds:
        return f"{schedule} on {pp} pipeline ranks runs microbatches in {rounds} equal rounds {there}"
    return None
