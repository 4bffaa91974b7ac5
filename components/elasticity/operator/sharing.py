"""Which jobs change their size, of all that compete for the same nodes. Pure: what is there in, decisions out.

Called by `turn`. In this order: pods that wait for too long make a less important job give way, and where none can,
their own job smaller; a job gives back workers that do not pay; what room is left then goes to the most important job
first. A job that could grow and may not do so yet has its room kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardline.components.elasticity.operator.facts import Key, Node, Pod
from shardline.components.elasticity.operator.room import Room
from shardline.components.elasticity.operator.settings import Settings
from shardline.components.elasticity.operator.sizes import Resize, Size, given_back, grown, shrunk, wanted


def smaller(
    sizes: Sequence[Size], *, nodes: Sequence[Node], pods: Sequence[Pod], settings: Settings
) -> dict[Key, Resize]:
    """The jobs to make smaller, with why."""
    ordered = sorted(sizes, key=lambda size: size.order)
    found: dict[Key, Resize] = {}
    for size in ordered:
        if size.late(settings):
            others = [each for each in reversed(ordered) if each.key not in found and each.priority < size.priority]
            giving = _gives_way(size, others, nodes=nodes, pods=pods, settings=settings)
            if giving:
                found |= giving
            elif size.key not in found and size.rested(settings) and (change := shrunk(size, settings)):
                found[size.key] = change
    for size in ordered:
        if size.key not in found and size.rested(settings) and (change := given_back(size)):
            found[size.key] = change
    return found


def larger(
    sizes: Sequence[Size], *, nodes: Sequence[Node], pods: Sequence[Pod], settings: Settings
) -> dict[Key, Resize]:
    """The jobs that could be made larger now, with why."""
    room = Room(nodes, pods)
    found: dict[Key, Resize] = {}
    ordered = sorted(sizes, key=lambda size: size.order)
    for size in ordered:
        room.place(size.demands, most=size.replicas - len(size.pods))  # its own that are still to be made
    for size in ordered:
        free = room.place(size.demands, most=max(0, wanted(size) - size.replicas))
        if size.may_grow(settings) and (change := grown(size, room=free)):
            found[size.key] = change
    return found


def _gives_way(
    size: Size, others: Sequence[Size], *, nodes: Sequence[Node], pods: Sequence[Pod], settings: Settings
) -> Mapping[Key, Resize]:
    """The least important job whose workers, as few as are needed, leave room for a pod of `size`; none: empty."""
    for other in others:
        if not other.rested(settings):
            continue
        for workers in other.smaller():
            room = Room(nodes, pods, without=other.pods[workers:])
            if room.placed.intersection(size.pods) or (
                len(size.pods) < size.replicas and room.place(size.demands, most=1)
            ):
                reason = f"makes room for {'/'.join(size.key)}, which is more important and has workers that wait"
                return {other.key: Resize(workers, reason)}
    return {}
