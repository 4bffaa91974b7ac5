"""What an agent reads of the nodes that runs do without. Storage that is away leaves it at what was known.

Called by `seat`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from shardline.components.common.errors import NodeSetAside, ShardlineError
from shardline.components.elasticity.budget.nodes import BadNodes


class Asides:
    """The records in `nodes`; None: there are none, and never will be."""

    def __init__(self, nodes: BadNodes | None) -> None:
        self.records = nodes

    def names(self, known: Sequence[str]) -> list[str]:
        """The nodes to do without; `known` are those that were when this was last asked."""
        if self.records is not None:
            with contextlib.suppress(ShardlineError):
                return self.records.names()
        return list(known)

    def error(self, node: str) -> NodeSetAside:
        """Why an agent on `node` leaves."""
        reason = "it failed again and again"
        with contextlib.suppress(ShardlineError):
            if self.records is not None and (found := self.records.get(node)):
                reason = found.reason
        return NodeSetAside(
            f"is set aside, and the others train without it: {reason}",
            where=f"node {node}",
            hint="`shardline nodes clear` takes it in again",
        )
