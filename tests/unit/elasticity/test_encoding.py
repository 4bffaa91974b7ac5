"""A state as text: what is apart, how large it is, and that it comes back as it was."""

from __future__ import annotations

import random

import pytest

from shardline.components.elasticity.group import encoding
from shardline.components.elasticity.group.state import State

#: Of an object of the API server, with all that it has beside our data.
LIMIT = 1 << 20


def large(members: int, *, processes: int = 1) -> State:
    """A state such as a run of that size has, with a snapshot in memory that it goes on from."""
    pick = random.Random(1)
    ids = [f"worker-{place}-{pick.getrandbits(32):08x}" for place in range(members)]
    hosts = [f"10.{pick.randrange(64)}.{pick.randrange(256)}.{pick.randrange(256)}" for _ in ids]
    nodes = [f"ip-{host.replace('.', '-')}.eu-central-1.compute.internal" for host in hosts]
    addresses = [f"{host}:{pick.randrange(32768, 61000)}" for host in hosts]
    ranks = {name: place * processes for place, name in enumerate(ids)}
    holders = {
        f"g000123-{rank:05d}.safetensors": [addresses[rank // processes], addresses[rank // processes - 1]]
        for rank in range(members * processes)
    }
    holders[f"record-{members * processes}.json"] = [addresses[0], addresses[-1]]
    return State(
        leader=ids[0],
        phase="running",
        generation=124,
        ranks=ranks,
        world=members * processes,
        nodes=dict(zip(ids, nodes, strict=True)),
        serving={name: [node, address] for name, node, address in zip(ids, nodes, addresses, strict=True)},
        job={"host": hosts[0], "port": 4711, "snapshot": {"generation": 123, "step": 70, "holders": holders}},
    )


@pytest.mark.parametrize(("members", "processes"), [(2, 1), (4096, 1), (4096, 8)])
def test_a_state_comes_back_as_it_was(members: int, processes: int) -> None:
    state = large(members, processes=processes)
    text, packed = encoding.encoded(state)
    assert encoding.decoded(text, packed) == state
    assert encoding.named(text) == (encoding.digest(packed) if packed is not None else None)
    assert (packed is None) == (members == 2)


@pytest.mark.parametrize("processes", [1, 8])
def test_with_4096_members_all_is_far_below_what_an_object_may_have(processes: int) -> None:
    text, packed = encoding.encoded(large(4096, processes=processes))
    assert packed is not None and len(packed) < LIMIT / 2
    assert len(text) < 2 << 10


def test_what_changes_within_a_generation_leaves_its_details_alone() -> None:
    state = large(4096)
    before = encoding.encoded(state)[1]
    assert encoding.encoded(state.changed(phase="gathering", round=9, generation=0, kept="x", aside=["n"]))[1] == before


def test_damaged_details_are_no_state() -> None:
    text, packed = encoding.encoded(large(4096))
    assert packed is not None
    for damaged in ("?", packed[:1000], packed[:-8], "AAAA" + packed[4:]):
        with pytest.raises(ValueError):
            encoding.decoded(text, damaged)
