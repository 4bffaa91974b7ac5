"""The pure parts of a drill: which faults come, what they cost, and that nothing lost or repeated goes unnoticed."""

from __future__ import annotations

import copy
import math
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.components.elasticity.drill import judging
from shardline.components.elasticity.drill.judging import Struck
from shardline.components.elasticity.drill.plan import CLUSTER, LOCAL, pick, plan

Records = list[dict[str, Any]]


# the plan


@pytest.mark.parametrize("kinds", [LOCAL, CLUSTER])
def test_the_same_seed_makes_the_same_faults_and_every_kind_comes_before_any_comes_again(kinds: dict[str, str]) -> None:
    def made(seed: int) -> list[Any]:
        return list(islice(plan(list(kinds), seed=seed, every=10.0, early=0.25), 3 * len(kinds)))

    first = made(1)
    assert first == made(1) != made(2)
    for start in range(0, len(first), len(kinds)):
        assert {fault.kind for fault in first[start : start + len(kinds)]} == set(kinds)
    assert [fault.number for fault in first] == list(range(1, len(first) + 1))


def test_some_faults_do_not_wait_for_a_recovery_never_the_first() -> None:
    faults = list(islice(plan(["worker"], seed=3, every=100.0, early=0.25), 400))
    assert not faults[0].early
    assert 60 < sum(fault.early for fault in faults) < 140
    assert all(50.0 <= fault.wait <= 150.0 for fault in faults if not fault.early)
    assert all(fault.wait <= 10.0 for fault in faults if fault.early)


@given(st.lists(st.integers(), unique=True), st.lists(st.floats(0, 1, exclude_max=True), max_size=2))
def test_no_victim_is_taken_twice(victims: list[int], picks: list[float]) -> None:
    found = pick(victims, picks)
    assert len(found) == len(set(found)) == min(len(victims), len(picks))
    assert set(found) <= set(victims)


# what faults cost


def finished(step: int, time: float, *, generation: int = 1) -> dict[str, Any]:
    moment = datetime.fromtimestamp(time, UTC).isoformat()
    return {"time": moment, "generation": generation, "data": {"step": step, "loss": 1.0 / (step + 1)}}


def struck(number: int, time: float) -> Struck:
    return Struck(number=number, kind="worker", victim="rank 0", time=time)


def test_a_fault_costs_the_longest_time_between_two_finished_steps_around_it() -> None:
    metrics = [finished(step, 100.0 + step) for step in range(10)]
    # Struck at 109.5, after step 9; the next generation begins again with step 6, and later takes a member in.
    metrics += [finished(6 + place, 114.0 + place, generation=2) for place in range(6)]
    metrics += [finished(12, 121.5, generation=3), finished(13, 122.5, generation=3)]
    (found,) = judging.recoveries([struck(1, 109.5)], metrics)
    assert (found.seconds, found.anew, found.generations, found.shared) == (5.0, 4, 2, False)


def test_faults_in_one_recovery_share_its_time_which_counts_once() -> None:
    metrics = [
        finished(0, 100.0),
        finished(1, 101.0),
        finished(2, 112.0, generation=3),
        finished(3, 113.0, generation=3),
    ]
    metrics += [finished(3, 119.0, generation=4)]
    found = judging.recoveries([struck(1, 101.5), struck(2, 105.0), struck(3, 113.5)], metrics)
    assert [(each.seconds, each.shared) for each in found] == [(11.0, False), (11.0, True), (6.0, False)]
    assert [each.anew for each in found] == [0, 0, 1]
    figures = judging.figures(found)
    assert (figures["count"], figures["first"], figures["p50"], figures["p95"]) == (2, 11.0, 8.5, 11.0)


def test_a_run_that_does_not_go_on_has_no_time() -> None:
    (found,) = judging.recoveries([struck(1, 101.5)], [finished(0, 100.0), finished(1, 101.0)])
    assert found.seconds is None
    assert judging.figures([found])["p50"] is None


@pytest.mark.parametrize(("percent", "value"), [(50, 3), (95, 5), (100, 5), (20, 1), (1, 1)])
def test_a_percentile_is_a_value_that_occurred(percent: float, value: float) -> None:
    assert judging.percentile([5, 1, 4, 2, 3], percent) == value


# the verdict on samples

STEPS, MICROBATCHES, SIZE = 12, 4, 2


def expected(step: int) -> dict[int, list[int]]:
    first = step * MICROBATCHES * SIZE
    return {number: [first + number * SIZE + place for place in range(SIZE)] for number in range(MICROBATCHES)}


def recorded(generation: int, steps: range) -> Records:
    return [
        {
            "generation": generation,
            "data": {"step": step, "microbatch": number, "dp_rank": number % 2, "indices": list(indices)},
        }
        for step in steps
        for number, indices in expected(step).items()
    ]


def disturbed() -> Records:
    """Three generations; of the first one's last step, a rank that was killed has recorded nothing."""
    first = [r for r in recorded(3, range(7)) if r["data"]["step"] < 6 or r["data"]["dp_rank"] == 0]
    return [*first, *recorded(5, range(4, 9)), *recorded(6, range(8, STEPS))]


def problems(records: Records, **options: bool) -> list[str]:
    return judging.sample_problems(records, expected=expected, steps=STEPS, **options)


def test_a_run_that_went_on_three_times_and_lost_nothing_has_no_problems() -> None:
    assert problems(disturbed()) == []
    assert problems(list(reversed(disturbed()))) == []


def counting(records: Records) -> list[int]:
    """The places of the records that count: of each step, the highest generation's."""
    newest = {r["data"]["step"]: r["generation"] for r in sorted(records, key=lambda r: int(r["generation"]))}
    return [place for place, r in enumerate(records) if newest[r["data"]["step"]] == r["generation"]]


@given(st.data(), st.sampled_from(["lost", "repeated", "another", "swapped", "shorter", "of another step"]))
def test_no_sample_is_lost_or_repeated_unnoticed(data: st.DataObject, mutation: str) -> None:
    records = copy.deepcopy(disturbed())
    places = counting(records)
    place = data.draw(st.sampled_from(places))
    indices = records[place]["data"]["indices"]
    match mutation:
        case "lost":
            del records[place]
        case "repeated":
            records.append(copy.deepcopy(records[place]))
        case "another":
            indices[data.draw(st.integers(0, SIZE - 1))] += data.draw(st.integers(1, 1000))
        case "swapped":
            indices.reverse()
        case "shorter":
            indices.pop()
        case "of another step":
            others = [each for each in places if records[each]["data"]["indices"] != indices]
            indices[:] = records[data.draw(st.sampled_from(others))]["data"]["indices"]
    assert problems(records)


def test_a_step_that_nobody_recorded_is_a_problem() -> None:
    assert problems([r for r in disturbed() if r["data"]["step"] != 5]) == ["step 5: no sample is recorded"]


def test_an_earlier_generation_may_have_recorded_less_but_nothing_else() -> None:
    records = disturbed()
    wrong = next(r for r in records if r["generation"] == 3 and r["data"]["step"] == 5)
    wrong["data"]["indices"][0] += 1
    (found,) = problems(records)
    assert "step 5 of generation 3" in found
    assert problems(records, all_generations=False) == []


def test_many_problems_are_told_by_the_first_few() -> None:
    found = problems([])
    assert len(found) == 6 and found[-1] == f"and {STEPS - 5} more"


# the verdict on losses


def test_of_a_step_that_was_done_again_the_highest_generation_counts() -> None:
    again = finished(1, 105.0, generation=2)
    again["data"]["loss"] = 0.25
    metrics = [finished(0, 100.0), finished(1, 101.0), again, finished(1, 106.0)]
    assert judging.losses(metrics, steps=2) == [1.0, 0.25]
    assert math.isnan(judging.losses(metrics, steps=3)[2])


def test_curves_with_a_hole_are_not_alike() -> None:
    assert judging.difference([1.0, 2.0], [1.0, 2.5]) == 0.5
    for hole in (math.nan, math.inf):
        assert judging.difference([1.0, hole], [1.0, 2.0]) == math.inf
    assert judging.difference([math.nan], [math.nan]) == math.inf


def test_losses_may_differ_ten_times_as_much_as_those_of_undisturbed_runs() -> None:
    assert judging.loss_bound(None, precision="fp64") == 1e-12
    assert judging.loss_bound(3e-13, precision="fp64") == pytest.approx(3e-12)
    assert judging.loss_bound(1e-3, precision="bf16") == pytest.approx(1e-2)
