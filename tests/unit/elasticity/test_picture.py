"""What an agent shows of itself to whoever looks from beside."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardline.components.elasticity.group.picture import Picture
from shardline.components.elasticity.group.state import State

RUNNING = State(leader="a", phase="running", generation=3, world=2, ranks={"a": 0, "b": 1})


@pytest.mark.parametrize(
    ("agent", "state", "role"),
    [
        ("a", None, "spare"),
        ("a", State(leader="a"), "leader"),
        ("a", RUNNING, "leader"),
        ("b", RUNNING, "member"),
        ("c", RUNNING, "spare"),
        # Who took part in the last generation may have no part in the next.
        ("b", replace(RUNNING, phase="gathering"), "spare"),
        ("b", replace(RUNNING, leader="b"), "leader"),
    ],
)
def test_the_role(agent: str, state: State | None, role: str) -> None:
    assert Picture(id=agent, state=state, restarts=0, looked=0.0, reads=True).role == role
