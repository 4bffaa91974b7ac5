"""Who looks at whom, and who takes the lead when."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import replace

import pytest

from shardline.components.elasticity.group import lookout
from shardline.components.elasticity.group.lookout import CANDIDATES, Lookout
from shardline.components.elasticity.group.presence import Rhythm
from shardline.components.elasticity.group.state import Member, State

MOST = 1000
NAMES = [f"m{place:04d}" for place in range(MOST)]


class Group:
    """Members whose beats go on unless they are gone, and what one of them reads of it each second."""

    def __init__(self, me: str, *, most: int = MOST) -> None:
        self.members = {name: Member(id=name, host=name, processes=1) for name in NAMES[:most]}
        self.read: list[list[str] | None] = []
        self.me = Lookout(me, most=most, pick=random.Random(1))
        self.now, self.failing = 0.0, False

    def pass_by(self, seconds: int, state: State | None, *, gone: Collection[str] = ()) -> bool:
        """Whether the member had to take the lead meanwhile."""
        next_ = False
        for _ in range(seconds):
            self.now += 1
            for name, member in self.members.items():
                if name not in gone:
                    self.members[name] = replace(member, beat=member.beat + 1)
            self.me.look(state, now=self.now, beat=1.0, silence=5.0, read=self._read)
            next_ = next_ or self.me.is_next(state)
        return next_

    def _read(self, names: Collection[str] | None) -> list[Member]:
        self.read.append(None if names is None else list(names))
        return [each for each in self.members.values() if names is None or each.id in names]


def state(**more: object) -> State:
    ranks = {name: 2 * place for place, name in enumerate(NAMES)}
    return State(leader=NAMES[0], phase="running", ranks=ranks, world=2 * MOST, **more)  # type: ignore[arg-type]


def test_all_of_a_small_group_look_at_all_and_the_first_that_lives_takes_the_lead() -> None:
    small = State(leader=NAMES[0], ranks={name: place for place, name in enumerate(NAMES[:8])}, world=8)
    for me, expected in ((NAMES[1], True), (NAMES[2], False)):
        group = Group(me, most=8)
        assert not group.pass_by(10, small)
        assert len(group.me.living) == 8
        assert not group.pass_by(4, small, gone=NAMES[:1])
        assert group.pass_by(2, small, gone=NAMES[:1]) is expected
        assert set(map(str, group.read)) == {"None"}


def test_of_a_large_group_a_few_look_at_all_and_one_of_them_takes_the_lead_at_once() -> None:
    for place, gone, expected in ((1, 1, True), (2, 1, False), (2, 2, True), (CANDIDATES - 1, 7, True)):
        group = Group(NAMES[place])
        assert not group.pass_by(10, state())
        assert group.pass_by(6, state(), gone=NAMES[:gone]) is expected
        assert group.me.sees_all


@pytest.mark.parametrize("place", [CANDIDATES, 63, 64, 999])
def test_the_others_look_at_the_leader_now_and_then(place: int) -> None:
    group = Group(NAMES[place])
    assert not group.pass_by(240, state())
    assert all(names == [NAMES[0]] for names in group.read)
    assert len(group.read) == pytest.approx(240 / lookout.beats_apart(NAMES[place], state(), most=MOST), abs=1)
    assert [each.id for each in group.me.living] == NAMES[:1]


def test_they_take_the_lead_when_the_candidates_are_gone_too_the_later_the_higher_their_rank() -> None:
    waited = []
    for place in (CANDIDATES, 100, 999):
        group = Group(NAMES[place])
        group.pass_by(60, state())
        before = group.now
        while not group.pass_by(1, state(), gone=NAMES[:CANDIDATES]):
            assert group.now < before + 120
        waited.append(group.now - before)
        # One that was too late tries no more before it has looked again.
        assert not group.pass_by(3, state(), gone=NAMES[:CANDIDATES])
    assert waited == sorted(waited) and waited[0] > 5


def test_when_another_one_leads_they_look_at_that_one() -> None:
    group = Group(NAMES[500])
    group.pass_by(60, state())
    group.pass_by(11, state(), gone=NAMES[:CANDIDATES])
    now = replace(state(), leader=NAMES[77], term=2)
    assert not group.pass_by(100, now, gone=NAMES[:CANDIDATES])
    assert group.read[-1] == [NAMES[77]]


def test_a_leader_that_was_no_candidate_is_left_alone() -> None:
    group = Group(NAMES[1])
    assert not group.pass_by(50, replace(state(), leader=NAMES[77]))


def test_a_look_that_failed_says_nothing_of_the_leader() -> None:
    group = Group(NAMES[500])
    group.pass_by(60, state())
    read, group._read = group._read, _fail  # type: ignore[method-assign]
    for _ in range(100):
        group.now += 1
        try:
            group.me.look(state(), now=group.now, beat=1.0, silence=5.0, read=group._read)
        except ConnectionError:
            continue
        assert not group.me.is_next(state())
    group._read = read  # type: ignore[method-assign]
    assert not group.pass_by(60, state())


def _fail(names: Collection[str] | None) -> list[Member]:
    raise ConnectionError


def test_before_there_is_a_leader_one_of_a_few_takes_the_lead() -> None:
    places = {name: lookout.place(name, None, most=MOST) for name in NAMES}
    few = [name for name in NAMES if places[name] < CANDIDATES]
    assert 0 < len(few) < 30
    group = Group(few[0])
    assert group.pass_by(1, None)
    later = Group(few[1])
    assert not later.pass_by(1, None)
    # The others do so when those few do not come.
    other = Group(next(name for name in NAMES if name not in few))
    assert not other.pass_by(10, None)
    assert other.pass_by(60, None)
    assert other.read == []


def test_one_that_leads_by_its_name_and_was_started_again_takes_the_lead_again() -> None:
    group = Group(NAMES[0])
    assert group.pass_by(1, state())
    assert not Group(NAMES[0]).pass_by(1, state(result={"exit_code": 0}).changed(phase="closed"))


def test_a_record_is_written_each_beat_and_soon_after_a_change() -> None:
    rhythm = Rhythm(random.Random(1))
    rhythm.writing(now=0, beat=1, spread=0)
    assert rhythm.due == 1
    rhythm.changed(now=0.25, spread=0)
    assert rhythm.due == 0.25
    rhythm.writing(now=0.3, beat=1, spread=0)
    assert rhythm.due == 1.3


def test_in_a_large_group_beats_and_what_all_tell_at_once_are_spread() -> None:
    rhythms = [Rhythm(random.Random(seed)) for seed in range(1000)]
    for each in rhythms:
        each.writing(now=0, beat=10, spread=10)
    assert _most_a_second(rhythms) < 150
    for each in rhythms:
        each.changed(now=0, spread=10)
    # No later than the beat that was due anyway.
    assert max(each.due for each in rhythms) <= 10 and _most_a_second(rhythms) < 300


def test_what_changes_again_before_it_is_written_is_written_no_earlier_for_that() -> None:
    rhythm = Rhythm(random.Random(1))
    rhythm.writing(now=0, beat=1000, spread=10)
    rhythm.changed(now=0, spread=10)
    due = rhythm.due
    for _ in range(20):
        rhythm.changed(now=0, spread=10)
    assert rhythm.due == due
    rhythm.changed(now=0, spread=0)
    assert rhythm.due == 0
    rhythm.writing(now=0, beat=1000, spread=10)
    rhythm.changed(now=0, spread=10)
    assert rhythm.due <= 10


def _most_a_second(rhythms: list[Rhythm]) -> int:
    return max(sum(second <= each.due < second + 1 for each in rhythms) for second in range(10))
