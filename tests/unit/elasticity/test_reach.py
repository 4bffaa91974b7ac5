"""Who reaches whom, over real sockets."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from shardline.components.elasticity.group.reach import Reach, unreached
from shardline.components.elasticity.group.state import Member, State


@contextlib.contextmanager
def listening() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def member(name: str, address: str, **more: object) -> Member:
    return Member(**{"id": name, "host": name, "processes": 1, "round": 3, "address": address, **more})  # type: ignore[arg-type]


def nowhere() -> str:
    """An address at which nothing listens any longer."""
    with listening() as address:
        return address


def test_those_that_do_not_answer_are_named() -> None:
    with listening() as there:
        others = [member("b", there), member("c", nowhere()), member("d", "")]
        assert unreached(others) == ("c",)
    assert unreached([]) == ()


def test_all_try_in_the_round_in_which_they_are_asked_to_and_once() -> None:
    reach = Reach()
    with listening() as there:
        one = member("a", there)
        others = [one, member("b", there), member("c", nowhere())]
        assert reach.tried(one, State(leader="b", round=3, tries=2), lambda: others) == (0, ())
        assert reach.tried(one, State(leader="b", round=3, tries=3), lambda: others) == (3, ("c",))
        knows = member("a", there, tried=3, cut_off=("b",))
        # It keeps what it found: not asked again, and it is too early to see whether that has changed.
        assert reach.tried(knows, State(leader="b", round=3, tries=3), lambda: others) == (3, ("b",))


def test_a_cut_that_has_healed_is_noticed() -> None:
    reach = Reach()
    reach._last -= 3600
    with listening() as there:
        knows = member("a", there, tried=3, cut_off=("b", "gone"))
        found = reach.tried(knows, State(leader="b", round=4, phase="running"), lambda: [knows, member("b", there)])
    assert found == (3, ())


def test_in_a_large_group_each_tries_some() -> None:
    with listening() as there:
        one = member("m050", there)
        others = [member(f"m{place:03}", nowhere() if place == 51 else there) for place in range(200)]
        assert Reach().tried(one, State(leader="m000", round=3, tries=3), lambda: others) == (3, ("m051",))
