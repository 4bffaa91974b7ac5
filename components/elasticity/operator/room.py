"""Which pods the nodes have room for: allocatable amounts less what pods there ask for. Pure.

Called by `sharing`. Pods that wait for a node have theirs reserved first, the most important of them first, as the
scheduler would place them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from decimal import Decimal

from shardline.components.elasticity.operator.demands import Demands, selected, tolerated
from shardline.components.elasticity.operator.facts import Node, Pod


class Room:
    """What is free on each node. `place` takes it up.

    Args:
        without: uids of pods that count as gone.
    """

    def __init__(self, nodes: Iterable[Node], pods: Iterable[Pod], *, without: Collection[str] = ()) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._free = {node.name: dict(node.allocatable) for node in self._nodes.values()}
        self._labels: dict[str, list[Mapping[str, str]]] = {name: [] for name in self._nodes}
        there = [pod for pod in pods if not pod.ended and pod.uid not in without]
        for pod in there:
            if pod.node in self._nodes:
                self._take(pod.node, pod.demands)
        waiting = [pod for pod in there if pod.node is None and not pod.ending]
        #: The uids of pods without a node that have found one here.
        self.placed = {
            pod.uid for pod in sorted(waiting, key=lambda pod: -pod.priority) if self.place(pod.demands, most=1)
        }

    def place(self, demands: Demands, *, most: int) -> int:
        """Put up to `most` such pods where there is room for them; how many there was room for."""
        placed = 0
        for name, node in self._nodes.items():
            while placed < most and self._takes(node, demands):
                self._take(name, demands)
                placed += 1
        return placed

    def _takes(self, node: Node, demands: Demands) -> bool:
        free = self._free[node.name]
        return (
            node.ready
            and node.open
            and all(free.get(name, Decimal(0)) >= wanted for name, wanted in demands.requests.items() if wanted)
            and all(node.labels.get(name) == value for name, value in demands.selector.items())
            and (not demands.terms or any(selected(t, name=node.name, labels=node.labels) for t in demands.terms))
            and all(tolerated(taint, demands.tolerations) for taint in node.taints)
            and not any(rule.items() <= labels.items() for rule in demands.apart for labels in self._labels[node.name])
        )

    def _take(self, name: str, demands: Demands) -> None:
        free = self._free[name]
        for resource, wanted in demands.requests.items():
            free[resource] = free.get(resource, Decimal(0)) - wanted
        self._labels[name].append(demands.labels)
