"""How often snapshots are taken."""

from __future__ import annotations

import pytest

from shardline.components.training.pace import LEAST_SECONDS, SHARE, Pace


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def shares(*, step: float, blocked: float, slower: float, steps: int) -> tuple[float, int]:
    """Of a simulated training: the part of its time that snapshots took, and how many there were."""
    clock, lost, count, slow_steps = Clock(), 0.0, 0, 0
    pace = Pace("auto", now=clock)
    for _ in range(steps):
        due = pace.is_due()
        seconds = step + (slower if slow_steps else 0.0)
        clock.now += seconds
        lost += seconds - step
        pace.step(seconds, saving=slow_steps > 0)
        slow_steps = max(0, slow_steps - 1)
        if due:
            clock.now += blocked
            pace.took(blocked)
            lost, count, slow_steps = lost + blocked, count + 1, 3
    return lost / clock.now, count


@pytest.mark.parametrize(("blocked", "slower"), [(0.02, 0.0), (0.2, 0.0), (0.02, 0.15), (2.0, 0.5)])
def test_they_cost_a_hundredth_of_the_time(blocked: float, slower: float) -> None:
    share, count = shares(step=0.3, blocked=blocked, slower=slower, steps=20_000)
    assert count > 5 and SHARE / 3 < share <= SHARE * 1.05


def test_cheap_ones_are_not_taken_all_the_time() -> None:
    _, count = shares(step=0.1, blocked=0.0, slower=0.0, steps=1000)
    assert count == pytest.approx(1000 * 0.1 / LEAST_SECONDS, rel=0.15)


def test_a_number_of_steps_is_kept() -> None:
    pace, taken = Pace(3), []
    for step in range(1, 13):
        due = pace.is_due()
        pace.step(0.1, saving=False)
        if due:
            taken.append(step)
            pace.took(0.0)
    assert taken == [3, 6, 9, 12]
