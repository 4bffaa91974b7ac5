"""What an agent shows of itself to whoever looks from beside, such as a server of metrics. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from shardline.components.common.series import Role
from shardline.components.elasticity.group.state import State


@dataclass(frozen=True, kw_only=True)
class Picture:
    """What an agent knows at a moment, for whoever looks at it from beside.

    Attributes:
        id: its own.
        state: as it saw it last; None before it has seen one.
        restarts: that it has made as the leader.
        looked: when its loop last came round, by `time.monotonic`.
        reads: whether it could read the board then.
    """

    id: str
    state: State | None
    restarts: int
    looked: float
    reads: bool

    @property
    def role(self) -> Role:
        """A spare is an agent that has no part in the generation, or in none as long as none has formed."""
        state = self.state
        if state is not None and state.leader == self.id:
            return "leader"
        return "member" if state is not None and state.phase == "running" and self.id in state.ranks else "spare"
