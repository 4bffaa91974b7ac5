"""Which jobs change their size, and why."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from shardline.components.elasticity.operator import sharing
from shardline.components.elasticity.operator.acting import Resized, setbacks
from shardline.components.elasticity.operator.settings import RESIZED, Settings
from shardline.components.elasticity.operator.sizes import Resize, Size
from shardline.components.elasticity.operator.worth import Speeds, Worth, worth
from tests.unit.elasticity.operating import job, node, pod

SETTINGS = Settings(pending=60, cool_down=300)
PODS = ("run-worker-0", "run-worker-1")


def size(name: str = "run", **changes: Any) -> Size:
    first = Size(
        key=("team", name),
        created="2026-01-01",
        demands=job().demands,
        replicas=2,
        running=2,
        allowed=(1, 2, 3, 4),
        quiet=1e9,
        pods=tuple(f"{name}-worker-{index}" for index in range(2)),
    )
    return dataclasses.replace(first, **changes)


def larger(*sizes: Size, gpus: int, pods: tuple[Any, ...] = ()) -> dict[str, int]:
    found = sharing.larger(sizes, nodes=[node("a", gpus=gpus)], pods=pods, settings=SETTINGS)
    return {name: change.workers for (_, name), change in found.items()}


def smaller(*sizes: Size, gpus: int = 0, pods: tuple[Any, ...] = ()) -> dict[str, Resize]:
    found = sharing.smaller(sizes, nodes=[node("a", gpus=gpus)], pods=pods, settings=SETTINGS)
    return {name: change for (_, name), change in found.items()}


def test_it_grows_into_the_room_there_is_up_to_the_most() -> None:
    assert larger(size(), gpus=0) == {}
    assert larger(size(), gpus=1) == {"run": 3}
    assert larger(size(), gpus=9) == {"run": 4}


def test_only_sizes_that_have_a_layout() -> None:
    assert larger(size(allowed=(2, 4)), gpus=1) == {}
    assert larger(size(allowed=(2, 4)), gpus=2) == {"run": 4}
    late = size(allowed=(1, 2, 4), replicas=4, running=3, waiting=(61.0,))
    assert smaller(late)["run"].workers == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"running": 1},
        {"waiting": (1.0,), "running": 1},
        {"quiet": 299.0},
        {"quiet": 500.0, "setbacks": 1},
        {"worth": Worth(2, "")},
    ],
)
def test_it_does_not_grow_yet(changes: dict[str, Any]) -> None:
    assert larger(size(**changes), gpus=9) == {}


def test_room_goes_to_the_most_important_then_to_the_oldest() -> None:
    young, old = size("young", created="2026-02-01"), size("old", created="2026-01-01")
    assert larger(young, old, gpus=3) == {"old": 4, "young": 3}
    assert larger(dataclasses.replace(young, priority=1), old, gpus=2) == {"young": 4}


def test_the_room_of_a_job_that_may_not_grow_yet_is_kept() -> None:
    important = size("important", priority=1, quiet=0.0)
    assert larger(important, size(), gpus=2) == {}
    assert larger(important, size(), gpus=3) == {"run": 3}


def test_pods_that_are_still_to_be_made_have_their_room() -> None:
    assert larger(size("made", replicas=4, running=2), size(), gpus=2) == {}


def test_it_shrinks_to_what_runs_when_pods_wait_too_long() -> None:
    assert smaller(size(running=1, waiting=(59.0,))) == {}
    change = smaller(size(running=1, waiting=(61.0,), why="x is not scheduled: full"))["run"]
    assert change == Resize(1, "1 of 2 workers have not got to run for 60 s: x is not scheduled: full", setback=True)
    assert smaller(size(running=1, waiting=(61.0,), quiet=10.0)) == {}
    assert smaller(size(running=0, waiting=(61.0, 61.0)))["run"].workers == 1  # the least is as near as it gets
    assert smaller(size(running=1, waiting=(61.0,), allowed=(2, 3))) == {}


def test_a_less_important_job_gives_way_with_as_few_as_are_needed() -> None:
    low = size("low", replicas=4, running=4, pods=tuple(f"low-worker-{n}" for n in range(4)))
    high = size("high", priority=9, replicas=2, running=1, waiting=(61.0,))
    pods = (
        *(pod(f"low-worker-{n}", on="a", job="low") for n in range(4)),
        pod("high-worker-0", on="a", job="high", priority=9),
        pod("high-worker-1", job="high", priority=9),
    )
    found = smaller(low, high, gpus=5, pods=pods)
    assert {name: change.workers for name, change in found.items()} == {"low": 3}
    assert "makes room for team/high" in found["low"].reason and not found["low"].setback
    # Where that would not help, or nobody may give way, its own job gets smaller.
    fixed = dataclasses.replace(low, allowed=(4,))
    assert {name: change.workers for name, change in smaller(fixed, high, gpus=5, pods=pods).items()} == {"high": 1}
    equal = dataclasses.replace(low, priority=9)
    assert set(smaller(equal, high, gpus=5, pods=pods)) == {"high"}


def test_it_gives_back_workers_that_do_not_pay() -> None:
    assert smaller(size(replicas=4, running=4, worth=Worth(2, "slow")))["run"] == Resize(2, "slow")
    assert smaller(size(worth=Worth(2, "slow"))) == {}


def test_what_another_worker_adds_is_learned() -> None:
    assert worth({}, gain=0.5) is None
    assert worth({1: 100.0, 2: 190.0, 4: 330.0}, gain=0.5) is None
    found = worth({1: 100.0, 2: 190.0, 4: 200.0}, gain=0.5)
    assert found is not None and found.workers == 2
    assert "each further one added 5% of what a worker did before, and 50% is asked for" in found.reason
    assert worth({2: 100.0, 3: 80.0}, gain=0.0) is not None  # fewer did more
    assert worth({2: 100.0, 3: 100.0}, gain=0.0) is None


def test_speeds_are_medians_of_steps_after_the_first_without_saves() -> None:
    speeds = Speeds()

    def steps(generation: int, count: int, *, tokens: int = 100, seconds: float = 1.0, save: float = 0.0) -> None:
        data = {"step": 0, "tokens": tokens, "seconds": seconds, "save_seconds": save}
        speeds.add([{"name": "train", "generation": generation, "data": data}] * count)

    steps(1, 3, seconds=50.0)
    steps(1, 5)
    steps(1, 1, seconds=3.0, save=2.0)
    steps(2, 7)  # too few
    steps(3, 20, tokens=170)
    steps(4, 20, tokens=999)  # of no known world
    worlds = {1: 2, 2: 6, 3: 4}
    assert speeds.by_workers(worlds, processes=2) == {1: 100.0, 2: 170.0}
    assert speeds.by_workers(worlds, processes=4) == {1: 170.0}


def test_how_often_there_was_no_room_after_all_is_counted() -> None:
    def resized(text: str) -> Resized | None:
        changed = dataclasses.replace(job(), annotations={RESIZED: text})
        return Resized.of(changed, now=1_767_225_700.0)  # 100 s after the time below

    grew = resized('{"at": "2026-01-01T00:00:00Z", "from": 2, "to": 4, "setbacks": 1}')
    assert grew == Resized(2, 4, 1, 100.0)
    back = resized('{"at": "2026-01-01T00:00:00Z", "from": 4, "to": 2, "setbacks": 2}')
    assert setbacks(grew, Resize(2, "", setback=True)) == 2
    assert setbacks(back, Resize(4, "")) == 2
    assert setbacks(back, Resize(1, "", setback=True)) == 2
    assert setbacks(grew, Resize(5, "")) == 0  # it held
    for broken in ("", "[]", "null", '{"at": 1}', '{"at": "2026-01-01", "from": "x"}'):
        assert resized(broken) is None
