"""What the agents of a group know of each other: two kinds of small record, as JSON.

Each agent writes its own `Member` again and again; that it changes is what shows that the agent lives. The one `State`
is changed by compare-and-swap, by the agent that leads and by one that takes the lead over. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from shardline.components.elasticity.ends import End

Phase = Literal["gathering", "running", "closed"]


@dataclass(frozen=True, kw_only=True)
class Member:
    """An agent, as it tells of itself.

    Attributes:
        host: the address at which the others reach what its workers serve; processes: workers that it starts.
        beat: grows with every writing.
        round: the last round that it has seen, see `State`; 0 while it is cold: it could not start workers at once.
        generation: that of its workers; 0 when none is running, nor has run since it saw the round.
        ends: of those workers that ended; of them all, once it is `done`.
        leaving: it was asked to end, and goes as soon as its workers have.
        tried: the last round in which it tried whether it reaches the others; cut_off: those that it did not.
        node: the machine that it is on; address: host and port where it serves what is in its memory.
        own, copies: the files there of each snapshot, made by its workers and copied from another member.
    """

    id: str
    host: str
    processes: int
    beat: int = 0
    round: int = 0
    generation: int = 0
    ends: tuple[End, ...] = ()
    leaving: bool = False
    tried: int = 0
    cut_off: tuple[str, ...] = ()
    node: str = ""
    address: str = ""
    own: dict[str, tuple[str, ...]] = field(default_factory=dict)
    copies: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        return any(end.exit_code for end in self.ends)

    @property
    def done(self) -> bool:
        """Whether all its workers have ended well."""
        return len(self.ends) == self.processes and not self.failed

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Member:
        ends = tuple(End(**end) for end in value["ends"])
        own, copies = ({name: tuple(files) for name, files in value[key].items()} for key in ("own", "copies"))
        return Member(**{**value, "ends": ends, "cut_off": tuple(value["cut_off"]), "own": own, "copies": copies})


@dataclass(frozen=True, kw_only=True)
class State:
    """What a group has agreed on.

    Attributes:
        leader: the id of the agent that decides; term: grows with every other leader, changes with every change.
        fence: of the lease that the leader holds, or held; 0 before it has one.
        round: grows whenever members are to gather anew: who has seen it has stopped its workers.
        tries: the last round in which they are to try whether they reach each other.
        generation: of the workers, in `running`.
        ranks: of each member that takes part, its first worker's rank; the others wait as spares.
        job: what the workers do, as `worker_main` takes it.
        nodes: of each member that takes part, its machine.
        aside: nodes to do without, as long as enough members are on others.
        serving: of each member that serves what is in its memory, taking part or not: its machine, and the address.
        first_snapshots: the first generation whose snapshots may be gone on from.
        kept: the newest snapshot that no single machine's loss can take: older ones are not needed any more.
        result: of the job, in `closed`: `exit_code`, and for an error its record.
    """

    leader: str
    term: int = 1
    changes: int = 0
    fence: int = 0
    round: int = 1
    tries: int = 0
    phase: Phase = "gathering"
    generation: int = 0
    world: int = 0
    ranks: dict[str, int] = field(default_factory=dict)
    job: dict[str, Any] = field(default_factory=dict)
    nodes: dict[str, str] = field(default_factory=dict)
    aside: list[str] = field(default_factory=list)
    serving: dict[str, list[str]] = field(default_factory=dict)
    first_snapshots: int = 0
    kept: str = ""
    result: dict[str, Any] | None = None

    @property
    def age(self) -> tuple[int, int]:
        """Of two states of a group, the larger is the later one."""
        return self.term, self.changes

    def changed(self, **changes: Any) -> State:
        """The state that follows this one."""
        return replace(self, changes=self.changes + 1, **changes)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> State:
        return State(**value)
