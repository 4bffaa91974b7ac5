"""Two boards in place of one while the first is away: what members see, and that they agree again afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardline.components.common.errors import PeerLost
from shardline.components.common.storage import Storage
from shardline.components.elasticity.group.board import StorageBoard
from shardline.components.elasticity.group.standby import StandbyBoard
from shardline.components.elasticity.group.state import Member, State


class Board(StorageBoard):
    """A folder that can be away, for all or for those that it names."""

    def __init__(self, folder: Path) -> None:
        super().__init__(Storage(str(folder)))
        self.away = False

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in ("state", "followed", "swap", "members", "put", "leave"):
            return found

        def call(*arguments: Any) -> Any:
            if self.away:
                raise PeerLost("the API server does not answer")
            return found(*arguments)

        return call


def member(name: str, beat: int = 1, **more: Any) -> Member:
    return Member(id=name, host=name, processes=1, beat=beat, **more)


@pytest.fixture
def boards(tmp_path: Path) -> Callable[[str], StandbyBoard]:
    def make(name: str) -> StandbyBoard:
        made = StandbyBoard(Board(tmp_path / "first"), Board(tmp_path / "second"), member=name)
        return made

    return make


def cut(*boards: StandbyBoard, away: bool = True, which: str = "_first") -> None:
    for each in boards:
        getattr(each, which).away = away


def state_of(board: StandbyBoard) -> State:
    found, _ = board.state()
    assert found is not None
    return found


def change(board: StandbyBoard, **changes: Any) -> bool:
    found, version = board.state()
    return board.swap(version, found.changed(**changes) if found else State(**changes))


@pytest.fixture
def pair(boards: Callable[[str], StandbyBoard]) -> tuple[StandbyBoard, StandbyBoard]:
    """A leader and another member, that both have seen the same."""
    leader, other = boards("a"), boards("b")
    assert change(leader, leader="a")
    for board, name in ((leader, "a"), (other, "b")):
        board.put(member(name))
    for board in (leader, other):
        assert [each.id for each in board.members()] == ["a", "b"]
        assert state_of(board).leader == "a"
    return leader, other


Pair = tuple[StandbyBoard, StandbyBoard]


def test_while_the_first_is_away_the_leader_forms_generations_on_the_second(pair: Pair) -> None:
    leader, other = pair
    cut(leader, other)
    assert change(leader, round=2)
    assert state_of(other).round == 2
    other.put(member("b", 2, round=2))
    assert [(each.id, each.round) for each in leader.members()] == [("a", 0), ("b", 2)]
    assert change(leader, phase="running", generation=7)
    assert state_of(other).generation == 7


def test_who_has_not_written_on_the_second_yet_is_not_gone(pair: Pair) -> None:
    leader, other = pair
    cut(leader, other)
    assert [each.id for each in leader.members()] == ["a", "b"]
    assert leader.silence_seconds > leader._first.silence_seconds


def test_nobody_takes_the_lead_while_the_first_is_away(pair: Pair) -> None:
    leader, other = pair
    cut(leader, other)
    assert change(leader, round=2)
    assert not change(other, leader="b", term=2)
    assert state_of(other).leader == "a"


def test_when_the_first_is_back_the_state_of_the_second_counts_and_is_written_there(pair: Pair) -> None:
    leader, other = pair
    cut(leader, other)
    assert change(leader, round=5)
    other.put(member("b", 9, round=5))
    state_of(other), leader.members()
    cut(leader, other, away=False)
    other.put(member("b", 10, round=5))
    # The leader has yet to notice, and on the first board there is what was long ago.
    assert state_of(other).round == 5
    assert state_of(leader).round == 5
    leader.put(member("a", 10))
    assert state_of(leader).round == 5
    assert other._first.state()[0] == state_of(leader)
    assert change(leader, round=6)
    assert state_of(other).round == 6
    # A record of before on the first board does not hide what was read since.
    assert {each.beat for each in leader.members()} == {10}


def test_a_leader_that_died_meanwhile_is_followed_from_its_last_state(pair: Pair) -> None:
    leader, other = pair
    cut(leader, other)
    assert change(leader, round=5)
    assert state_of(other).round == 5
    cut(other, away=False)
    other.put(member("b", 10))
    found = state_of(other)
    assert change(other, leader="b", term=found.term + 1, round=found.round + 1)
    assert other._first.state()[0].round == 6  # type: ignore[union-attr]


def test_a_leader_that_only_misses_the_first_board_itself_finds_out_that_another_leads(pair: Pair) -> None:
    leader, other = pair
    cut(leader)
    assert change(leader, round=2)
    assert change(other, leader="b", term=2, round=2)
    cut(leader, away=False)
    leader.put(member("a", 5))
    assert state_of(leader).leader == "b"
    # And what it wrote on the second board misleads nobody later.
    cut(leader, other)
    assert state_of(other).leader == "b"
    assert change(other, round=3)
    assert state_of(leader).round == 3


def test_a_swap_that_is_lost_on_the_way_is_done_again(pair: Pair) -> None:
    leader, other = pair
    found, version = leader.state()
    assert found is not None
    cut(leader, other)
    assert not leader.swap(version, found.changed(round=2))
    assert change(leader, round=2)
    assert state_of(other).round == 2


def test_with_both_away_it_is_said(pair: Pair) -> None:
    leader, other = pair
    cut(leader, other)
    cut(leader, other, which="_second")
    for call in (leader.state, leader.members, lambda: leader.put(member("a", 2))):
        with pytest.raises(PeerLost):
            call()
    # The first one is tried again although the second fails.
    cut(leader, away=False)
    with pytest.raises(PeerLost):
        leader.put(member("a", 3))
    assert state_of(leader) == State(leader="a")


def test_who_leaves_is_on_neither_board(pair: Pair) -> None:
    leader, other = pair
    cut(leader, other)
    leader.put(member("a", 2))
    other.put(member("b", 2))
    cut(leader, other, away=False)
    other.leave("b")
    assert [each.id for each in other._first.members()] == ["a"]
    assert [each.id for each in other._second.members()] == ["a"]


def test_a_group_that_was_ended_is_no_longer_known(pair: Pair) -> None:
    leader, _ = pair
    leader._first._folder.delete("state.json")  # type: ignore[attr-defined]
    assert leader.state()[0] is None


def test_who_follows_sees_what_the_leader_does_and_asks_for_one_member_alone(pair: Pair) -> None:
    leader, other = pair
    assert change(leader, round=3)
    assert other.followed()[0] == state_of(leader)
    assert [each.id for each in other.members(["a"])] == ["a"]
    cut(leader, other)
    assert change(leader, round=4)
    found, version = other.followed()
    assert found is not None and found.round == 4
    assert not other.swap(version, found.changed(leader="b", term=2))
    # It has not written there yet; and who asks for one has not forgotten the others.
    assert [each.id for each in other.members(["a"])] == ["a"]
    assert [each.id for each in other.members()] == ["a", "b"]
    cut(leader, other, which="_second")
    with pytest.raises(PeerLost):
        other.followed()
