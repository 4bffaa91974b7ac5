"""What the leader of a group tells of a generation that ended before its time. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from shardline.components.elasticity.budget.causes import Place
from shardline.components.elasticity.ends import End
from shardline.components.elasticity.group import forming
from shardline.components.elasticity.group.state import Member, State
from shardline.components.elasticity.restarts import Loss


def places(state: State) -> list[Place]:
    """Where the workers of a generation are."""
    ordered = sorted(state.ranks.items(), key=lambda each: each[1])
    ends = [*(first for _, first in ordered[1:]), state.world]
    return [
        Place(member=name, node=state.nodes.get(name, ""), first=first, processes=end - first)
        for (name, first), end in zip(ordered, ends, strict=True)
    ]


def noticed(state: State, living: Sequence[Member], *, ends: Sequence[End], gone: Sequence[str]) -> Loss:
    """What this leader saw.

    Args:
        gone: what is lost beside workers, in words.
    """
    agents = forming.lost(state, living)
    return Loss(generation=state.generation, ends=ends, gone=gone, agents=agents, places=places(state))


def inherited(before: State | None) -> Loss | None:
    """What the leader before took along, which is gone; None when no generation was at work under it."""
    if before is None or before.phase != "running":
        return None
    gone = [f"agent {before.leader}, which led, is gone"]
    return Loss(generation=before.generation, gone=gone, agents=[before.leader], places=places(before))
