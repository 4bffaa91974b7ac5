"""A group in virtual time, by the code that decides in pods: what it asks of the API server, and who leads."""

from __future__ import annotations

import pytest

from benchmarks.agents.__main__ import FAULTS, measure, pass_by
from benchmarks.agents.group import Agent, Group
from shardline.components.elasticity.group.lookout import CANDIDATES
from shardline.components.elasticity.group.pace import RATE

COUNT = 64


def test_few_calls_and_no_moment_with_many_more() -> None:
    found = measure(COUNT, within=5.0, steady=60.0)["phases"]
    steady = found["steady"]
    # A beat each second and member, the leader's looks, and those of the others at the leader.
    assert COUNT <= steady["mean"] < 1.5 * COUNT
    assert "LIST" not in steady["calls"] and steady["worst"] < 3 * COUNT
    # Each has reason to write once for the round and once for the generation, to read once, and beats on.
    assert all(found[fault]["worst"] < 4 * COUNT for fault in FAULTS)
    assert all(found[fault]["generations"] == 1 for fault in FAULTS)
    assert found["a worker"]["seconds"] < 4 and found["an agent's pod"]["seconds"] < 6
    assert found["an agent's node"]["seconds"] < 10 and found["the leader's node"]["seconds"] < 10


def test_a_group_larger_than_the_rate_keeps_to_it() -> None:
    count = 2 * RATE
    group = Group(count, within=10.0)
    group.world.run(lambda: group.trains(count), most=120)
    pass_by(group, 5)
    begun = int(group.world.now) + 1
    pass_by(group, 11)
    calls = [group.api.tally.total(second) for second in range(begun, begun + 10)]
    assert sum(calls) / 10 < 1.3 * RATE and max(calls) < 2 * RATE


def test_when_leader_and_candidates_are_gone_another_one_leads_and_one_alone() -> None:
    group = Group(COUNT, within=5.0)
    group.world.run(lambda: group.trains(COUNT), most=60)
    ranks = group.leader.seat.known[0].ranks  # type: ignore[union-attr]
    first = sorted(group.agents, key=lambda agent: ranks[agent.id])[: CANDIDATES + 1]
    before = group.generation
    for agent in first:
        group.lose(agent, pod=False)
    # `Group.took` raises when two lead.
    assert group.leaders[-1][1] in first
    group.world.run(lambda: group.trains(COUNT - len(first), after=before), most=120)
    assert group.leader not in first


def test_a_leader_that_is_started_again_under_its_name_leads_again() -> None:
    group = Group(4, within=1.0)
    group.world.run(lambda: group.trains(4), most=60)
    leader, before = group.leader, group.generation
    group.lose(leader, pod=False)
    place = group.agents.index(leader)
    group.agents[place] = Agent(group, place)
    assert group.agents[place].id == leader.id
    group.world.at(group.world.now + 2, group.agents[place].start)
    group.world.run(lambda: group.trains(4, after=before), most=60)
    assert group.leader is group.agents[place] and len(group.leaders) == 2


@pytest.mark.parametrize("seed", range(3))
def test_a_group_that_starts_has_one_leader(seed: int) -> None:
    group = Group(COUNT, within=1.0, seed=seed)
    group.world.run(lambda: group.trains(COUNT), most=60)
    assert [agent.leads for agent in group.agents].count(True) == 1
    assert group.generation == 1
