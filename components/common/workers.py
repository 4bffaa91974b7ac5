"""The seam between a step and whatever starts its worker processes.

A step describes a `Job`; an `Agent` forms a group of processes, numbers it as a generation, and calls the job's entry
in each of them. A worker learns all it needs from its `WorkerContext`: it reads no rank and no world size from the
environment, may be entered twice in one process, and leaves no process group behind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from shardline.components.common.events import EventLog
from shardline.components.common.owner import Lease
from shardline.components.common.storage import Storage


@dataclass(frozen=True, kw_only=True)
class WorkerContext:
    """One worker's place in one generation.

    `store` is a key-value store of `torch.distributed` that belongs to this generation alone. `fence` is the lease
    under which the worker may commit. `memory` is a folder in this machine's memory, which `local_world` workers share
    and which outlives them; `snapshot` says what to go on from that is in such folders, if anything is.
    """

    generation: int
    rank: int
    world: int
    local_rank: int
    store: Any
    run: Storage
    fence: int
    timeout: timedelta
    local_world: int = 1
    memory: str | None = None
    snapshot: dict[str, Any] | None = None

    @property
    def lease(self) -> Lease:
        return Lease(self.run, fence=self.fence, lent=True)


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the workers of a group do.

    Attributes:
        name: the pipeline step it belongs to.
        entry: `module:function`, called as `function(context, **arguments)` in each worker.
        arguments: given the generation and the world size, the JSON-able arguments, the same for every worker.
        regroups: whether its workers, asked to, save and end at once so that a group of another size goes on.
    """

    name: str
    entry: str
    arguments: Callable[[int, int], dict[str, Any]]
    regroups: bool = False

    @property
    def module(self) -> str:
        return module_of(self.entry)


def module_of(entry: str) -> str:
    return entry.partition(":")[0]


class Agent(Protocol):
    """Starts groups of workers until one of them ends its job well."""

    def run(self, job: Job, *, run: Storage, lease: Lease, events: EventLog) -> None:
        """Return when every worker has ended well.

        Raises:
            ShardlineError: the error that ended the job, as the worker that met it first recorded it.
        """
        ...
