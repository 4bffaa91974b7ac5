"""What a run may lose: how ends are classified and counted, when it gives up, and which node it does without."""

from __future__ import annotations

import signal
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.components.elasticity.budget.causes import Place, entry_of
from shardline.components.elasticity.budget.ledger import Cause, Entry, Failure, row
from shardline.components.elasticity.budget.verdict import Limits, judge
from shardline.components.elasticity.ends import End

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
LIMITS = Limits(max_restarts=3, restart_window=3600, restarts_in_window=100, set_aside_after=3)
PLACES = (
    Place(member="a", node="n1", first=0, processes=2),
    Place(member="b", node="n2", first=2, processes=2),
)


def entry(generation: int, *, step: int = 0, node: str = "", cause: Cause = "killed", spent: str = "") -> Entry:
    """One a minute, by their numbers."""
    failures = (Failure(cause=cause, rank=0, member=f"on-{node}", node=node),)
    time = (BEGAN + timedelta(minutes=generation)).isoformat()
    reason = f"{cause} in generation {generation}"
    return Entry(
        generation=generation, time=time, step=step, cause=cause, reason=reason, failures=failures, spent=spent
    )


def verdict(*entries: Entry, limits: Limits = LIMITS, **cleared: datetime) -> Any:
    return judge(entries, limits, now=entries[-1].at, cleared=cleared)


def classified(*ends: End, record: dict[str, Any] | None = None, gone: tuple[str, ...] = ()) -> Entry:
    return entry_of(
        7, record=record, ends=ends, gone=gone, places=PLACES, step=5, time=BEGAN.isoformat(), reason="it was so"
    )


def record(exit_code: int, *, rank: int = 0, kind: str = "PeerLost") -> dict[str, Any]:
    return {"type": kind, "exit_code": exit_code, "rank": rank, "message": "so it was"}


def end(rank: int, exit_code: int) -> End:
    return End(rank=rank, pid=100 + rank, exit_code=exit_code)


@pytest.mark.parametrize(
    ("ends", "left", "gone", "cause", "nodes"),
    [
        ([end(2, -signal.SIGKILL), end(0, 175)], record(175), (), "killed", {"n2"}),
        ([end(1, -signal.SIGTERM)], None, (), "terminated", set()),
        ([end(1, 143)], record(143, rank=1, kind="Stopped"), (), "terminated", set()),
        ([end(0, 175), end(2, 175)], record(175), (), "peer", set()),
        ([end(3, 176), end(0, 175)], record(176, rank=3, kind="DeviceFault"), (), "device", {"n2"}),
        ([end(0, 175)], record(175), ("b",), "gone", {"n2"}),
        ([end(0, -signal.SIGSEGV)], None, ("b",), "killed", {"n1", "n2"}),
        # It ended without a word; the one that told of it had only lost it.
        ([end(1, 1), end(2, 175)], record(175, rank=2), (), "failed", {"n1"}),
        ([end(1, 2), end(0, 175)], record(2, rank=1, kind="UserError"), (), "final", set()),
        ([end(0, 175)], record(175, kind="RolledBack"), (), "rolled-back", set()),
        ([], None, (), "peer", set()),
        ([], None, ("nobody-knows-where",), "gone", set()),
    ],
)
def test_an_end_has_a_class_and_a_place(
    ends: list[End], left: dict[str, Any] | None, gone: tuple[str, ...], cause: str, nodes: set[str]
) -> None:
    found = classified(*ends, record=left, gone=gone)
    assert (found.cause, found.nodes(), found.generation, found.step) == (cause, nodes, 7, 5)


def test_a_failure_tells_rank_agent_and_node_once() -> None:
    found = classified(end(3, 176), record=record(176, rank=3, kind="DeviceFault"))
    assert found.failures == (Failure(cause="device", exit_code=176, rank=3, member="b", node="n2"),)


def test_entries_survive_their_json() -> None:
    one = entry(3, step=40, node="n1", spent="it is enough")
    assert Entry.from_json(one.to_json()) == one
    for broken in ({**one.to_json(), "v": 2}, {"v": 1}, {**one.to_json(), "time": "2026-01-01T00:00:00"}):
        with pytest.raises((ValueError, TypeError, KeyError)):
            Entry.from_json(broken)


def test_it_gives_up_after_so_many_in_a_row_at_the_same_step() -> None:
    losses = [entry(number, step=10) for number in range(1, 5)]
    found = [verdict(*losses[:count]) for count in range(1, 5)]
    assert [each.left for each in found] == [2, 1, 0, 0]
    assert [each.spent for each in found[:3]] == ["", "", ""]
    assert found[3].spent == ("elastic.max_restarts (3) is used up, 4 times in a row without a step saved in between")


def test_a_step_that_was_saved_begins_a_new_row() -> None:
    losses = [entry(number, step=number * 10) for number in range(1, 50)]
    assert not verdict(*losses).spent and verdict(*losses).in_a_row == 1
    # To come back to a step that was lost, again and again, is no progress.
    swinging = [entry(number, step=10 + 10 * (number % 2)) for number in range(1, 6)]
    assert verdict(*swinging).in_a_row == 5


def test_a_roll_back_is_no_loss_and_what_is_saved_after_it_counts() -> None:
    back = entry(3, step=5, cause="rolled-back")
    losses = [entry(1, step=10), entry(2, step=10), back]
    assert verdict(*losses).in_a_row == 0 and not verdict(*losses).spent
    assert verdict(*losses, entry(4, step=5)).in_a_row == 3
    assert verdict(*losses, entry(4, step=8)).in_a_row == 1


def test_a_row_ends_where_the_run_gave_up_and_the_window_does_not() -> None:
    losses = [entry(number, spent="spent" if number == 4 else "") for number in range(1, 6)]
    assert verdict(*losses).in_a_row == 1
    few = Limits(max_restarts=3, restart_window=3600, restarts_in_window=4, set_aside_after=0)
    assert verdict(*losses, limits=few).spent == "elastic.restarts_in_window (4) is used up, 5 times in 1 h"


def test_without_any_restart_the_first_loss_is_the_last() -> None:
    none = Limits(max_restarts=0, restart_window=3600, restarts_in_window=100, set_aside_after=3)
    assert verdict(entry(1), limits=none).spent == "elastic.max_restarts (0) is used up, at the first loss"


def test_what_is_long_past_is_not_counted_in_the_window_but_in_the_row() -> None:
    few = Limits(max_restarts=100, restart_window=90, restarts_in_window=2, set_aside_after=3)
    losses = [entry(number, step=0) for number in range(1, 30)]
    found = verdict(*losses, limits=few)
    assert not found.spent and found.in_a_row == 29


def test_jobs_made_again_count_in_the_window_alone() -> None:
    jobs = [entry(number, cause="job") for number in range(1, 4)]
    few = Limits(max_restarts=1, restart_window=3600, restarts_in_window=2, set_aside_after=0)
    assert not verdict(*jobs[:2], limits=few).spent
    assert "elastic.restarts_in_window (2) is used up" in verdict(*jobs, limits=few).spent


def test_a_node_that_fails_again_and_again_is_set_aside() -> None:
    losses = [entry(number, step=number, node="n1") for number in range(1, 4)]
    assert not verdict(*losses[:2]).aside
    (found,) = verdict(*losses).aside
    assert found.node == "n1" and found.entries == tuple(losses)
    assert found.reason == "3 losses in 1 h were on it or on its processes, the last: killed in generation 3"


@pytest.mark.parametrize("cause", ["terminated", "peer", "rolled-back", "final", "job"])
def test_what_says_nothing_of_a_node_does_not_set_it_aside(cause: Cause) -> None:
    assert not verdict(*(entry(number, step=number, node="n1", cause=cause) for number in range(1, 9))).aside


def test_where_others_fail_as_often_it_is_not_the_node() -> None:
    turns = [entry(number, step=number, node=f"n{number % 2}") for number in range(1, 11)]
    assert not verdict(*turns).aside
    more = [*turns, entry(11, step=11, node="n1")]
    assert [each.node for each in verdict(*more).aside] == ["n1"]


def test_a_node_that_was_taken_in_again_begins_anew() -> None:
    losses = [entry(number, step=number, node="n1") for number in range(1, 6)]
    cleared = losses[2].at
    assert not verdict(*losses, n1=cleared).aside
    assert verdict(*losses, entry(6, step=6, node="n1"), n1=cleared).aside


def test_zero_sets_nothing_aside_and_an_unknown_node_cannot_be() -> None:
    never = Limits(max_restarts=3, restart_window=3600, restarts_in_window=100, set_aside_after=0)
    losses = [entry(number, step=number, node="n1") for number in range(1, 9)]
    assert not verdict(*losses, limits=never).aside
    assert not verdict(*(entry(number, step=number) for number in range(1, 9))).aside


@given(
    steps=st.lists(st.integers(0, 5), min_size=1, max_size=30),
    most=st.integers(0, 5),
    window=st.integers(0, 8),
)
def test_tries_are_bounded_by_progress_and_by_time(steps: list[int], most: int, window: int) -> None:
    """Whatever happens: it goes on only while both limits allow it, and a step beyond all before begins a row."""
    limits = Limits(max_restarts=most, restart_window=10**6, restarts_in_window=window, set_aside_after=0)
    losses = [entry(number, step=step) for number, step in enumerate(steps)]
    newest = max(place for place in range(len(steps)) if steps[place] > max(steps[:place], default=-1))
    expected = len(steps) - newest
    found = verdict(*losses, limits=limits)
    assert len(row(losses)) == found.in_a_row == expected
    assert bool(found.spent) == (expected > most or len(steps) > window)
    assert found.left == max(0, min(most - expected, window - len(steps)))
