"""Which snapshot a group can go on from, and who copies from whom."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shardline.components.elasticity.group.state import Member, State
from shardline.components.elasticity.snapshots import choice

OLD, NEW = "000003-000000000010", "000003-000000000020"
FILES = ("record-3.json", "g3-index.json", "g3-00000.safetensors", "g3-00001.safetensors")


def member(name: str, *, own: dict[str, tuple[str, ...]], copies: dict[str, tuple[str, ...]] | None = None) -> Member:
    return Member(id=name, host=name, node=name, processes=1, address=f"{name}:1", own=own, copies=copies or {})


def pair(*, copied: bool) -> list[Member]:
    a = {OLD: FILES[:3], NEW: FILES[:3]}
    b = {OLD: FILES[3:], NEW: FILES[3:]}
    return [
        member("a", own=a, copies={OLD: FILES[3:], **({NEW: FILES[3:]} if copied else {})}),
        member("b", own=b, copies={OLD: FILES[:3], **({NEW: FILES[:3]} if copied else {})}),
    ]


def test_the_newest_whole_one_is_taken_also_when_a_member_is_gone() -> None:
    both = pair(copied=True)
    assert choice.newest(both, first_generation=0) == NEW
    assert all(choice.newest([each], first_generation=0) == NEW for each in both)
    told = choice.described(NEW, both[1:])
    assert told == {"generation": 3, "step": 20, "holders": {name: ["b:1"] for name in FILES}}


def test_one_that_a_lost_member_took_along_does_not_count() -> None:
    both = pair(copied=False)
    assert choice.newest(both, first_generation=0) == NEW
    assert all(choice.newest([each], first_generation=0) == OLD for each in both)
    # So the older one is kept until the newer one is copied.
    assert choice.newest(both, first_generation=0, copies=2) == OLD
    assert choice.newest(pair(copied=True), first_generation=0, copies=2) == NEW


def test_one_without_its_record_or_with_a_file_too_few_or_of_a_generation_that_does_not_count_is_none() -> None:
    for missing in FILES:
        there = {NEW: tuple(name for name in FILES if name != missing)}
        assert choice.newest([member("a", own=there)], first_generation=0) is None
    assert choice.newest([member("a", own={NEW: FILES})], first_generation=3) == NEW
    assert choice.newest([member("a", own={NEW: FILES})], first_generation=4) is None


def test_a_later_generation_comes_before_a_higher_step() -> None:
    later = "000004-000000000015"
    there = {NEW: FILES, later: FILES}
    assert choice.newest([member("a", own=there)], first_generation=0) == later


@given(st.lists(st.sampled_from(["x", "y", "z"]), min_size=1, max_size=12))
def test_everybody_is_copied_once_and_by_another_node_where_there_are_as_many_of_each(nodes: list[str]) -> None:
    members = [
        Member(id=f"{place:02d}", host="h", node=node, processes=1, address=f"a:{place}")
        for place, node in enumerate(nodes)
    ]
    serving = choice.serving(members)
    sources = [choice.source_of(each.id, serving) for each in members]
    if len(members) == 1:
        assert sources == [None]
        return
    by_address = {each.address: each for each in members}
    assert sorted(source or "" for source in sources) == sorted(by_address)
    counts = {nodes.count(node) for node in set(nodes)}
    if len(counts) == 1 and len(set(nodes)) > 1:
        copied = [by_address[source] for source in sources if source]
        assert all(source.node != each.node for source, each in zip(copied, members, strict=True))


def test_who_is_not_there_or_serves_nothing_copies_nothing() -> None:
    assert choice.source_of("gone", choice.serving(pair(copied=True))) is None
    assert choice.serving([Member(id="a", host="a", processes=1)]) == {}


def test_what_is_kept_is_the_newest_that_no_machine_takes_along() -> None:
    assert choice.kept(pair(copied=False), first_generation=0) == OLD
    assert choice.kept(pair(copied=True), first_generation=0) == NEW
    assert choice.kept(pair(copied=True), first_generation=4) == ""
    assert choice.kept([member("alone", own={NEW: FILES})], first_generation=0) == NEW
    assert choice.kept([], first_generation=0) == ""
    serving = {"a": ["a", "a:1"], "b": ["b", "b:1"]}
    state = State(leader="a", kept=OLD)
    assert choice.news(state, pair(copied=True)) == {"kept": NEW, "serving": serving}
    told = State(leader="a", kept=NEW, serving=serving)
    # What one machine holds alone now was held by two, and what is older is gone.
    assert choice.news(told, pair(copied=False)) == {}
    assert choice.news(told, pair(copied=True)[:1]) == {"serving": {"a": ["a", "a:1"]}}
