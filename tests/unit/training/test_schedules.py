"""The planner's rules for schedules against torch's own: torch can run what is accepted, and puts stages there."""

from __future__ import annotations

from collections import Counter

import pytest
from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops
from torch.distributed.pipelining._utils import generate_rank_to_stage_mapping

from shardline.components.common.config.schedules import SCHEDULES, microbatches_problem
from shardline.components.planning.layout import Layout
from shardline.components.training.pipelined import leaves

MANY = [name for name, rule in SCHEDULES.items() if rule.least_stages > 1]


@pytest.mark.parametrize("pp", [2, 3, 4])
@pytest.mark.parametrize("schedule", MANY)
def test_torch_can_run_what_is_accepted(schedule: str, pp: int) -> None:
    stages = SCHEDULES[schedule].least_stages
    accepted = 0
    for microbatches in range(1, 4 * pp + 2):
        if microbatches_problem(schedule, pp=pp, microbatches=microbatches):
            continue
        accepted += 1
        # Lowering it walks through sends and receives: one that waits for ever is found there.
        order = get_schedule_ops(schedule, pp, microbatches, stages, with_comms=True)
        counted = Counter(
            leaf.stage_index
            for actions in order
            for action in actions
            for leaf in leaves(action)
            if leaf.computation_type.name == "FORWARD"
        )
        assert counted == dict.fromkeys(range(pp * stages), microbatches)
    assert accepted >= 3


@pytest.mark.parametrize("schedule", ["DualPipeV", "Interleaved1F1B", "InterleavedZeroBubble"])
def test_what_torch_refuses_is_refused_before_with_the_reason(schedule: str) -> None:
    for microbatches in range(1, 14):
        try:
            get_schedule_ops(schedule, 4, microbatches)
        except ValueError:
            problem = microbatches_problem(schedule, pp=4, microbatches=microbatches)
            assert problem and f"there are {microbatches}" in problem


@pytest.mark.parametrize("schedule", MANY)
def test_stages_lie_where_torch_expects_them(schedule: str) -> None:
    layout = Layout(pp=4, schedule=schedule, stages_per_rank=2)
    style = "v" if SCHEDULES[schedule].v_shaped else "loop"
    expected = generate_rank_to_stage_mapping(4, 8, style=style)
    assert {rank: sorted(layout.stages_of(rank)) for rank in range(4)} == {
        rank: sorted(stages) for rank, stages in expected.items()
    }
