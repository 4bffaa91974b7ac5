"""Which snapshot is whole among the members of a group, and which may go. Pure."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from shardline.components.common.peers import place_of
from shardline.components.elasticity.group.state import Member, State

#: Made last: a snapshot without it is none. It is the name that training gives it, with the number of the other files.
_RECORD = re.compile(r"record-([0-9]+)\.json")


def holders(members: Sequence[Member]) -> dict[str, dict[str, list[str]]]:
    """For each snapshot and each of its files, the addresses that have it."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for member in members:
        for place in (member.own, member.copies):
            for snapshot, files in place.items():
                for file in files:
                    found[snapshot][file].append(member.address)
    return {snapshot: dict(files) for snapshot, files in found.items()}


def is_whole(files: Mapping[str, Sequence[str]], *, copies: int = 1) -> bool:
    """Whether the record is there and all the files that it is over, each with at least so many members."""
    expected = next((int(found[1]) for name in files if (found := _RECORD.fullmatch(name))), None)
    return len(files) - 1 == expected and all(len(set(addresses)) >= copies for addresses in files.values())


def newest(members: Sequence[Member], *, first_generation: int, copies: int = 1) -> str | None:
    """The newest snapshot that is whole.

    Args:
        first_generation: those of earlier ones do not count.
    """
    found = [
        snapshot
        for snapshot, files in holders(members).items()
        if place_of(snapshot)[0] >= first_generation and is_whole(files, copies=copies)
    ]
    return max(found, default=None)


def described(snapshot: str, members: Sequence[Member]) -> dict[str, Any]:
    """What workers are told of a snapshot to go on from."""
    generation, step = place_of(snapshot)
    return {"generation": generation, "step": step, "holders": holders(members)[snapshot]}


def serving(members: Sequence[Member]) -> dict[str, list[str]]:
    """As `State.serving`."""
    return {each.id: [each.node, each.address] for each in members if each.address}


def source_of(member: str, serving: Mapping[str, Sequence[str]]) -> str | None:
    """The address from which `member` copies files; None when it is alone, or is not among them.

    All copy around a ring, in which those of one node lie apart as far as that can be.

    Args:
        serving: as in the state.
    """
    if member not in serving or len(serving) < 2:
        return None
    turns: Counter[str] = Counter()
    order = []
    for each, (node, _) in sorted(serving.items()):
        order.append((turns[node], node, each))
        turns[node] += 1
    ring = [each for *_, each in sorted(order)]
    return serving[ring[ring.index(member) - 1]][1]


def kept(members: Sequence[Member], *, first_generation: int) -> str:
    """The newest snapshot that no single machine's loss can take; "" while there is none."""
    return newest(members, first_generation=first_generation, copies=min(2, len(members))) or ""


def news(state: State, living: Sequence[Member]) -> dict[str, Any]:
    """What the leader has to change in the state, as to who serves snapshots and which of them are needed."""
    kept_now = max(state.kept, kept(living, first_generation=state.first_snapshots))
    found = {"kept": kept_now, "serving": serving(living)}
    return {key: value for key, value in found.items() if value != getattr(state, key)}
