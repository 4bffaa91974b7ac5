"""A board of objects of an API server: what a member sees, what it costs, and what it does when it is told nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from shardline.components.common.errors import DamagedData, PeerLost
from shardline.components.common.kubernetes.client import Client
from shardline.components.elasticity.group.kube_board import KubernetesBoard
from shardline.components.elasticity.group.kube_records import read_members, read_state
from shardline.components.elasticity.group.state import Member, State
from shardline.components.elasticity.pod import Pod
from tests import commands
from tests.serving import serving
from tests.unit.common.kubernetes.test_client import kubeconfig
from tests.unit.elasticity.api_server import ApiServer
from tests.unit.elasticity.test_encoding import large

Make = Callable[..., KubernetesBoard]
eventually = partial(commands.eventually, seconds=30.0)


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with serving(ApiServer()) as server:
        yield server
        server.end_watches()


@pytest.fixture
def client(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    kubeconfig(tmp_path, monkeypatch, f"http://127.0.0.1:{server.server_address[1]}")
    return Client.connect(patience=0.3, timeout=(1, 1))


@pytest.fixture
def make(client: Client) -> Make:
    def make(**more: float) -> KubernetesBoard:
        job = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "run", "uid": "1"}
        pod = Pod(name="run-worker-0", uid="2", namespace="team", labels={}, controller=job)
        return KubernetesBoard(client, group="run-1", pod=pod, **more)  # type: ignore[arg-type]

    return make


def member(name: str, beat: int = 1) -> Member:
    return Member(id=name, host=name, processes=1, beat=beat)


def names(board: KubernetesBoard) -> list[str]:
    return [each.id for each in board.members()]


def test_of_two_that_swap_one_is_first(make: Make) -> None:
    one, other = make(), make()
    assert one.state() == (None, None)
    assert one.swap(None, State(leader="a"))
    assert not other.swap(None, State(leader="b"))
    state, version = other.state()
    assert state == State(leader="a")
    assert one.swap(one.state()[1], state.changed(round=2))
    assert not other.swap(version, state.changed(round=3))
    assert one.state()[0] == state.changed(round=2)


def test_a_change_reaches_those_that_follow_without_a_call(make: Make, server: ApiServer) -> None:
    leader, follower = make(), make()
    assert leader.swap(None, State(leader="a"))
    assert follower.followed()[0] == State(leader="a")
    eventually(lambda: ("WATCH", "ConfigMap") in server.calls)
    server.calls.clear()
    state, version = leader.state()
    assert state is not None and leader.swap(version, state.changed(round=2))
    eventually(lambda: follower.followed()[0] == state.changed(round=2))
    assert server.calls == [("GET", "ConfigMap"), ("PATCH", "ConfigMap")]


def test_a_large_state_has_its_details_in_an_object_of_their_own(make: Make, server: ApiServer, client: Client) -> None:
    leader, follower = make(), make()
    first = large(300)
    assert leader.swap(None, first)
    assert leader.state()[0] == follower.followed()[0] == read_state(client, "run-1") == first
    (details,) = (each for each in server.objects.list("ConfigMap") if each["metadata"]["name"] != "run-1")
    assert details["metadata"]["ownerReferences"][0]["kind"] == "PyTorchJob"
    # What changes within a generation is a small object, and its details are not read again.
    eventually(lambda: follower._states.found() is not None)
    _, version = leader.state()
    assert leader.swap(version, first.changed(phase="gathering", round=2))
    server.calls.clear()
    eventually(lambda: follower.followed()[0] == first.changed(phase="gathering", round=2))
    assert server.calls == []
    # The details of the generation before go.
    _, version = leader.state()
    second = large(200).changed(round=2, generation=125)
    assert leader.swap(version, second)
    eventually(lambda: follower.followed()[0] == second)
    assert len(server.objects.list("ConfigMap")) == 2


def test_members_of_a_large_group_read_the_details_one_after_the_other(make: Make, server: ApiServer) -> None:
    now = 0.0
    followers = [make(most=4096, clock=lambda: now) for _ in range(20)]
    leader = make(most=4096)
    assert leader.swap(None, State(leader="a"))
    for each in followers:
        assert each.followed()[0] == State(leader="a")
        eventually(lambda each=each: each._states.found() is not None)  # type: ignore[misc]
    version = leader.state()[1]
    assert leader.swap(version, large(300).changed())
    for each in followers:
        eventually(lambda each=each: "details" in each._states.found()["run-1"]["data"]["state"])  # type: ignore[misc]
    seen = []
    for second in range(12):
        now = float(second)
        seen.append(sum(each.followed()[0] == large(300).changed() for each in followers))
    assert seen[0] < 5 and seen[-1] == 20 and len(set(seen)) > 4


def test_members_are_watched_by_those_that_read_all(make: Make, server: ApiServer, client: Client) -> None:
    board, other = make(), make()
    board.put(member("a"))
    other.put(member("b"))
    assert names(board) == ["a", "b"] == [each.id for each in read_members(client, "run-1")]
    assert [each.id for each in board.members(["b", "gone"])] == ["b"]
    eventually(lambda: board._leases.found() is not None)
    server.calls.clear()
    other.put(member("b", 2))
    other.put(member("c"))
    eventually(lambda: [(each.id, each.beat) for each in board.members()] == [("a", 1), ("b", 2), ("c", 1)])
    other.leave("b")
    eventually(lambda: names(board) == ["a", "c"])
    assert {verb for verb, _ in server.calls} == {"PATCH", "POST", "DELETE"}


def test_a_watch_that_ends_is_made_anew(make: Make, server: ApiServer) -> None:
    board, other = make(), make()
    board.put(member("a"))
    eventually(lambda: board.members() != [] and len(server.watching) == 1)
    server.end_watches()
    eventually(lambda: server.calls.count(("WATCH", "Lease")) == 2)
    other.put(member("b"))
    eventually(lambda: names(board) == ["a", "b"])


def test_a_watch_that_says_nothing_of_ones_own_beats_is_not_believed(make: Make, server: ApiServer) -> None:
    now = 0.0
    board, other = make(clock=lambda: now), make()
    board.put(member("a"))
    eventually(lambda: board.members() != [] and board._leases.found() is not None)
    server.silent = True
    other.put(member("b"))
    for beat in range(2, 5):
        board.put(member("a", beat))
        now += 1.0
        found = names(board)
    assert found == ["a", "b"]


def test_when_the_server_was_away_nothing_is_believed_that_was_watched(make: Make, server: ApiServer) -> None:
    board, other = make(), make()
    assert other.swap(None, State(leader="a"))
    board.put(member("a"))
    eventually(lambda: board.followed()[0] is not None and board._states.found() is not None)
    server.silent = True
    state, version = other.state()
    assert state is not None and other.swap(version, state.changed(round=2))
    assert board.followed()[0] == state
    server.away = True
    with pytest.raises(PeerLost):
        board.put(member("a", 2))
    server.away = False
    eventually(lambda: board.followed()[0] == state.changed(round=2))


def test_what_is_no_state_is_said_to_be_none(make: Make, server: ApiServer) -> None:
    board = make()
    assert board.swap(None, large(300))
    for each in server.objects.list("ConfigMap"):
        if each["metadata"]["name"] != "run-1":
            server.objects.patch("ConfigMap", each["metadata"]["name"], {"binaryData": {"details": "AAAA"}})
    with pytest.raises(DamagedData, match="ConfigMap run-1"):
        make().state()
    server.objects.patch("ConfigMap", "run-1", {"data": {"state": "[]"}})
    with pytest.raises(DamagedData, match="ConfigMap run-1"):
        make().state()


@pytest.mark.parametrize(("most", "beat", "silence", "spread"), [(2, 1, 5, 0), (64, 1, 5, 0), (4000, 10, 50, 9.84)])
def test_a_large_group_does_all_at_a_slower_pace(
    make: Make, most: int, beat: float, silence: float, spread: float
) -> None:
    board = make(most=most)
    assert (board.beat_seconds, board.silence_seconds, board.spread_seconds) == (beat, silence, spread)
