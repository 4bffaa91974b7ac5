"""Who takes part, who leads, and what ends a generation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.components.elasticity.ends import End
from shardline.components.elasticity.group import forming, losses
from shardline.components.elasticity.group.state import Member, State

SIZE = forming.Size(least=2, most=4, settle=1.0)


def member(name: str, *, round: int = 1, processes: int = 1, generation: int = 0, beat: int = 0) -> Member:
    return Member(id=name, host=name, processes=processes, round=round, generation=generation, beat=beat)


def anything(world: int) -> bool:
    return True


def even(world: int) -> bool:
    return world % 2 == 0


def names(members: list[Member]) -> list[str]:
    return [each.id for each in members]


def group(*ids: str, round: int = 1) -> list[Member]:
    return [member(name, round=round) for name in ids]


@pytest.mark.parametrize(
    ("there", "waited", "fits", "expected"),
    [
        ("abcd", 0.0, anything, "abcd"),  # all that there may be: nobody to wait for
        ("abc", 0.5, anything, ""),
        ("abc", 1.0, anything, "abc"),
        ("a", 99.0, anything, ""),  # too few
        ("abcde", 0.0, anything, "abcd"),  # one waits
        ("abc", 1.0, even, "ab"),  # three make no layout
        ("abcd", 0.0, lambda world: False, "abcd"),  # nothing to wait for: it is told why they make none
        ("abc", 9.0, lambda world: False, ""),
        ("bcd", 9.0, anything, ""),  # never without the leader, who has the store
    ],
)
def test_a_generation_is_formed(there: str, waited: float, fits: Callable[[int], bool], expected: str) -> None:
    state = State(leader="a")
    found = forming.gathered(state, group(*there), size=SIZE, waited=waited, fits=fits)
    assert names(found) == list(expected)


def test_after_the_first_generation_nobody_is_waited_for_who_is_not_there() -> None:
    state = State(leader="a", round=2, ranks={"a": 0, "b": 1, "c": 2})
    there = group("a", "b", round=2)
    assert names(forming.gathered(state, there, size=SIZE, waited=0, fits=anything)) == ["a", "b"]
    cold = [*there, member("d", round=0)]
    assert names(forming.gathered(state, cold, size=SIZE, waited=0, fits=anything)) == ["a", "b"]
    # A spare that was ready before the round began will see it soon: without it the next generation would end at once.
    spare = [*there, member("d", round=1)]
    assert names(forming.gathered(state, spare, size=SIZE, waited=0, fits=anything)) == []
    # One that took part, lives, and has yet to stop its workers is waited for.
    late = [*there, member("c", round=1, generation=4)]
    assert names(forming.gathered(state, late, size=SIZE, waited=9.9, fits=anything)) == []
    assert names(forming.gathered(state, late, size=SIZE, waited=10.0, fits=anything)) == ["a", "b"]


def test_before_the_first_generation_all_that_live_are_waited_for() -> None:
    state = State(leader="a", round=1)
    cold = [*group("a", "b"), member("c", round=0)]
    assert names(forming.gathered(state, cold, size=SIZE, waited=9.9, fits=anything)) == []
    assert names(forming.gathered(state, cold, size=SIZE, waited=10.0, fits=anything)) == ["a", "b"]


def test_who_leaves_neither_takes_part_nor_leads_nor_is_waited_for() -> None:
    state = State(leader="a", round=2, ranks={"a": 0, "b": 1, "c": 2})
    leaving = replace(member("b", round=2), leaving=True)
    living = [member("a", round=2), leaving, member("c", round=2)]
    assert names(forming.gathered(state, living, size=SIZE, waited=0, fits=anything)) == ["a", "c"]
    assert forming.next_leader(state, living[1:]) == "c"
    assert forming.next_leader(state, [leaving]) is None
    grown = State(leader="a", phase="running", ranks={"a": 0}, world=1)
    assert not forming.could_grow(grown, [member("a"), leaving], size=SIZE, fits=anything)


def test_who_has_not_seen_the_round_takes_no_part() -> None:
    state = State(leader="a", round=7)
    living = [*group("a", "b", round=7), member("gone", round=6), member("busy", round=7, generation=3)]
    assert names(forming.gathered(state, living, size=SIZE, waited=10, fits=anything)) == ["a", "b"]


def test_ranks_change_little() -> None:
    state = State(leader="d", ranks={"b": 0, "c": 1, "a": 2, "e": 3})
    found = forming.gathered(state, group("a", "c", "d", "new"), size=SIZE, waited=0, fits=anything)
    assert names(found) == ["d", "c", "a", "new"]


@given(st.lists(st.integers(1, 8), min_size=1, max_size=8))
def test_ranks_are_consecutive(processes: list[int]) -> None:
    members = [member(str(place), processes=count) for place, count in enumerate(processes)]
    ranks, world = forming.ranks_of(members)
    owned = [ranks[each.id] + place for each in members for place in range(each.processes)]
    assert owned == list(range(world))
    assert world == sum(processes)


def test_one_leads_at_a_time() -> None:
    everyone = group("c", "b", "a")
    assert forming.next_leader(None, everyone) == "a"
    assert forming.next_leader(State(leader="c"), everyone) is None
    assert forming.next_leader(State(leader="gone"), everyone) == "a"
    assert forming.next_leader(State(leader="gone", phase="closed"), everyone) is None
    assert forming.next_leader(None, []) is None


def test_silence_is_measured_by_changes_alone() -> None:
    pulse = forming.Pulse()
    assert names(pulse.living([member("a", beat=5), member("b", beat=1)], silence=3, now=0)) == ["a", "b"]
    pulse.living([member("a", beat=5), member("b", beat=1)], silence=3, now=1.5)
    assert names(pulse.living([member("a", beat=6), member("b", beat=1)], silence=3, now=3)) == ["a", "b"]
    assert names(pulse.living([member("a", beat=7), member("b", beat=1)], silence=3, now=3.1)) == ["a"]
    assert names(pulse.living([member("a", beat=7), member("b", beat=2)], silence=3, now=4)) == ["a", "b"]
    assert names(pulse.living([member("b", beat=2)], silence=3, now=4.1)) == ["b"]


def test_what_nobody_could_see_is_no_silence() -> None:
    pulse = forming.Pulse()
    pulse.living([member("a", beat=5)], silence=3, now=0)
    pulse.living([member("a", beat=5)], silence=3, now=1)
    assert names(pulse.living([member("a", beat=5)], silence=3, now=500)) == ["a"]
    assert names(pulse.living([member("a", beat=5)], silence=3, now=501.5)) == ["a"]
    assert names(pulse.living([member("a", beat=5)], silence=3, now=502.5)) == []


def test_growth_pays_only_if_a_larger_world_fits() -> None:
    state = State(leader="a", phase="running", generation=4, ranks={"a": 0, "b": 1}, world=2)
    busy = [member("a", generation=4), member("b", generation=4)]
    assert not forming.could_grow(state, busy, size=SIZE, fits=even)
    assert not forming.could_grow(state, [*busy, *group("c")], size=SIZE, fits=even)
    assert forming.could_grow(state, [*busy, *group("c", "d")], size=SIZE, fits=even)
    assert not forming.could_grow(state, [*busy, *group("c", "d", round=0)], size=SIZE, fits=even)
    assert not forming.could_grow(
        state, [*busy, *group("c", "d")], size=forming.Size(least=2, most=3, settle=1), fits=even
    )


def having_tried(name: str, *cut_off: str, round: int = 2) -> Member:
    return replace(member(name, round=round), tried=round, cut_off=cut_off)


def test_a_generation_is_formed_of_those_that_reach_each_other() -> None:
    state = State(leader="a", round=2, tries=2, ranks={"a": 0, "b": 1, "c": 2})
    # Either end's word will do.
    there = [having_tried("a"), having_tried("b", "c"), having_tried("c")]
    assert names(forming.gathered(state, there, size=SIZE, waited=0, fits=anything)) == ["a", "b"]
    # Whoever is cut off from the leader has nobody to take part with, though it comes before the others.
    there = [having_tried("a", "b"), having_tried("b"), having_tried("c")]
    assert names(forming.gathered(state, there, size=SIZE, waited=0, fits=anything)) == ["a", "c"]
    # Who has yet to try is waited for.
    there = [having_tried("a"), having_tried("b"), member("c", round=2)]
    assert names(forming.gathered(state, there, size=SIZE, waited=0, fits=anything)) == []


def test_who_is_cut_off_from_most_is_left_out_and_a_leader_that_is_gives_up() -> None:
    bad_b = [having_tried("a"), having_tried("b", "c", "d"), having_tried("c"), having_tried("d")]
    assert names(forming.connected(bad_b)) == ["a", "c", "d"]
    assert not forming.is_isolated(bad_b[0], bad_b)
    bad_a = [having_tried("a", "b", "c", "d"), *map(having_tried, "bcd")]
    assert names(forming.connected(bad_a)) == ["a"]
    assert forming.is_isolated(bad_a[0], bad_a)
    # Of two neither is better off.
    pair = [having_tried("a", "b"), having_tried("b", "a")]
    assert not forming.is_isolated(pair[0], pair)


def test_a_group_does_not_grow_by_one_that_is_cut_off() -> None:
    state = State(leader="a", phase="running", generation=4, ranks={"a": 0, "b": 1}, world=2)
    busy = [member("a", generation=4), member("b", generation=4)]
    assert not forming.could_grow(state, [*busy, having_tried("c", "b")], size=SIZE, fits=anything)
    assert forming.could_grow(state, [*busy, having_tried("c")], size=SIZE, fits=anything)


def test_of_two_states_the_later_one_is_known() -> None:
    first = State(leader="a")
    second = first.changed(phase="running")
    third = replace(first, leader="b", term=2)
    assert first.age < second.age < third.age
    assert second.changed(round=9).age > second.age


def test_records_survive_their_json() -> None:
    one = Member(
        id="a",
        host="h",
        processes=2,
        beat=3,
        round=4,
        generation=5,
        ends=(End(rank=0, pid=1, exit_code=-9),),
        tried=4,
        cut_off=("b",),
    )
    assert Member.from_json(one.to_json()) == one
    state = State(leader="a", ranks={"a": 0}, job={"port": 5}, result={"exit_code": 0})
    assert State.from_json(state.to_json()) == state


def on(node: str, *ids: str, round: int = 1) -> list[Member]:
    return [replace(each, node=node) for each in group(*ids, round=round)]


def test_who_is_on_a_node_that_is_set_aside_takes_part_only_where_it_is_needed() -> None:
    state = State(leader="a", aside=["bad"])
    there = [*on("n1", "a"), *on("bad", "b"), *on("n2", "c"), *on("n3", "d")]
    assert names(forming.gathered(state, there, size=SIZE, waited=1, fits=anything)) == ["a", "c", "d"]
    few = [*on("n1", "a"), *on("bad", "b", "e")]
    assert names(forming.gathered(state, few, size=SIZE, waited=1, fits=anything)) == ["a", "b"]
    # Without it there would be no layout.
    four = forming.Size(least=1, most=4, settle=1.0)
    assert names(forming.gathered(state, few[:2], size=four, waited=1, fits=even)) == ["a", "b"]
    # Nobody waits for it; others are waited for as ever.
    seen = State(leader="a", round=2, ranks={"a": 0, "b": 1, "c": 2}, aside=["bad"])
    late = [*on("n1", "a", round=2), *on("n2", "c", round=2), *on("bad", "b", round=1)]
    assert names(forming.gathered(seen, late, size=SIZE, waited=0, fits=anything)) == ["a", "c"]


def test_who_is_left_out_for_its_node_is_no_reason_to_grow() -> None:
    state = State(leader="a", phase="running", ranks={"a": 0}, world=1, aside=["bad"])
    spare, bad = on("n2", "b"), on("bad", "c")
    assert forming.could_grow(state, [*on("n1", "a"), *spare], size=SIZE, fits=anything)
    assert not forming.could_grow(state, [*on("n1", "a"), *bad], size=SIZE, fits=anything)
    assert forming.is_left_out(state, bad[0]) and not forming.is_left_out(state, spare[0])
    assert not forming.is_left_out(replace(state, ranks={"a": 0, "c": 1}), bad[0])
    assert not forming.is_left_out(replace(state, phase="gathering"), bad[0])


def test_the_leader_leaves_a_bad_node_to_others_that_are_enough() -> None:
    state = State(leader="a", aside=["bad"])
    assert forming.yields(state, [*on("bad", "a"), *on("n1", "b", "c")], size=SIZE, fits=anything)
    assert not forming.yields(state, [*on("bad", "a", "d"), *on("n1", "b")], size=SIZE, fits=anything)
    assert not forming.yields(state, [*on("bad", "a"), *on("n1", "b", "c")], size=SIZE, fits=lambda world: world == 3)
    assert not forming.yields(state, [*on("n1", "a"), *on("bad", "b", "c", "d")], size=SIZE, fits=anything)
    assert forming.next_leader(state, [*on("bad", "a2"), *on("n1", "b")]) == "b"
    assert forming.next_leader(state, on("bad", "b2", "b1")) == "b1"


def test_what_the_leader_before_took_along_is_a_loss() -> None:
    state = State(leader="b", phase="running", generation=7, ranks={"a": 0, "b": 2}, world=3, nodes={"b": "n2"})
    loss = losses.inherited(state)
    assert loss is not None and loss.generation == 7 and list(loss.agents) == ["b"]
    assert [(place.member, place.node, place.first, place.processes) for place in loss.places] == [
        ("a", "", 0, 2),
        ("b", "n2", 2, 1),
    ]
    for none in (None, replace(state, phase="gathering"), replace(state, phase="closed")):
        assert losses.inherited(none) is None


def test_an_agent_that_is_gone_is_told_with_its_node() -> None:
    state = State(leader="a", phase="running", generation=7, ranks={"a": 0, "b": 1}, world=2, nodes={"b": "n2"})
    loss = losses.noticed(state, group("a"), ends=[], gone=["agent b is gone"])
    assert list(loss.agents) == ["b"] and list(loss.gone) == ["agent b is gone"]
