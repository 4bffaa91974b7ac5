"""Nodes that are set aside: what follows for a job that is there. Pure. Called by `turn` and `acting`.

New pods are kept away by the template that all of a job's pods share; a pod that is on such a node is then deleted,
with its grace, so that its workers save and it is made again elsewhere. It stays as long as it would be missed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from shardline.components.common.kubernetes.avoidance import (
    HOSTNAME,
    LEFT_OUT,
    affinity,
    avoiding,
    left_out,
)
from shardline.components.elasticity import jobstate
from shardline.components.elasticity.operator.facts import Job, Pod, World
from shardline.components.elasticity.operator.room import Room


def change(job: Job, aside: Collection[str]) -> dict[str, Any] | None:
    """What to change of the job so that its new pods keep away from nodes; None when they do.

    Args:
        aside: the nodes that are set aside. Those that no longer are, are let in again.
    """
    before = left_out(job.annotations)
    by_hand = {name for name in _avoided(job) if name not in before}
    now = sorted({*aside} - by_hand)
    if now == before and set(before) <= _avoided(job):
        return None
    terms = avoiding(job.demands.terms, now, instead_of=before)
    return {
        "metadata": {"annotations": {LEFT_OUT: ",".join(now) or None}},
        "spec": jobstate.with_workers(template={"spec": {"affinity": affinity(terms)}}),
    }


def on_them(world: World, job: Job, aside: Collection[str]) -> list[Pod]:
    """The job's pods that run on nodes that are set aside."""
    return [pod for pod in world.pods_of(job) if pod.node in aside and not pod.ended and not pod.ending]


def may_go(world: World, job: Job, pods: Collection[Pod]) -> bool:
    """Whether all of `pods`, on nodes that are set aside, may be deleted: without them the job still has its least
    size, or there is room for as many elsewhere."""
    going = {pod.uid for pod in pods}
    staying = [pod for pod in world.pods_of(job) if pod.running and not pod.ending and pod.uid not in going]
    if len(staying) >= job.least:
        return True
    return Room(world.nodes, world.pods).place(job.demands, most=len(pods)) == len(pods)


def _avoided(job: Job) -> set[str]:
    """The nodes that no pod of the job may be put on, by name."""
    found = [_not_in(term.get("matchExpressions") or ()) for term in job.demands.terms]
    return set.intersection(*found) if found else set()


def _not_in(expressions: Iterable[Any]) -> set[str]:
    return {
        name
        for each in expressions
        if each.get("key") == HOSTNAME and each.get("operator") == "NotIn"
        for name in each.get("values") or ()
    }
