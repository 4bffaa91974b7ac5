"""Of one job: which number of workers it should have, and why. Pure.

Called by `sharing`, which knows of the other jobs. Only numbers for which the planner has a layout are ever chosen.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shardline.components.elasticity.operator.demands import Demands
from shardline.components.elasticity.operator.facts import Key
from shardline.components.elasticity.operator.settings import Settings
from shardline.components.elasticity.operator.worth import Worth


@dataclass(frozen=True)
class Resize:
    """A job's number of workers is to become `workers`.

    Attributes:
        setback: whether the number that it has turned out to be too large for the cluster.
    """

    workers: int
    reason: str
    setback: bool = False


@dataclass(frozen=True, kw_only=True)
class Size:
    """What bears on a job's size.

    Attributes:
        key: of the job. priority, created: the higher, then the older one goes first.
        replicas: that it has; pods: uids of the pods of these, by their place; running: how many of them run.
        waiting: seconds for which each of those that do not get to run has waited; a pod that could not even be made
            counts, too. why: what keeps one of them from running, in words.
        allowed: the numbers of workers that it may have, in order.
        worth: where more workers have not paid.
        quiet: seconds since its size was last changed.
        setbacks: how often, one after the other, it was made larger and there was no room after all.
    """

    key: Key
    created: str
    demands: Demands
    replicas: int
    running: int
    allowed: tuple[int, ...]
    quiet: float
    priority: int = 0
    pods: tuple[str, ...] = ()
    waiting: tuple[float, ...] = ()
    why: str | None = None
    worth: Worth | None = None
    setbacks: int = field(default=0)

    @property
    def order(self) -> tuple[int, str, Key]:
        """The first is the most important."""
        return -self.priority, self.created, self.key

    def late(self, settings: Settings) -> int:
        """Pods that have waited for too long."""
        return sum(seconds >= settings.pending for seconds in self.waiting)

    def rested(self, settings: Settings) -> bool:
        """Whether it may be made smaller again."""
        return self.quiet >= settings.cool_down

    def may_grow(self, settings: Settings) -> bool:
        """Whether it may be made larger again: after each setback later, as what was seen as room is none."""
        wait = settings.cool_down * 2.0 ** min(self.setbacks, 5)
        return not self.waiting and self.running == self.replicas and self.quiet >= wait

    def smaller(self) -> tuple[int, ...]:
        """The numbers below the one that it has, the largest first."""
        return tuple(number for number in reversed(self.allowed) if number < self.replicas)


def shrunk(size: Size, settings: Settings) -> Resize | None:
    """Down to what runs, when pods wait for too long."""
    late = size.late(settings)
    if not late or not size.smaller():
        return None
    left = size.replicas - late
    # With fewer than the least there is no training at all: the least is as near as it gets.
    workers = next((number for number in size.smaller() if number <= left), size.smaller()[-1])
    reason = f"{late} of {size.replicas} workers have not got to run for {settings.pending:.0f} s"
    return Resize(workers, f"{reason}: {size.why}" if size.why else reason, setback=True)


def given_back(size: Size) -> Resize | None:
    """Down to where the workers pay."""
    if size.worth is None or size.worth.workers >= size.replicas:
        return None
    workers = next((number for number in size.smaller() if number <= size.worth.workers), None)
    return None if workers is None else Resize(workers, size.worth.reason)


def wanted(size: Size) -> int:
    """The most workers that it would take if there were room."""
    most = size.worth.workers if size.worth else size.replicas if not size.allowed else size.allowed[-1]
    return max((number for number in size.allowed if number <= most), default=size.replicas)


def grown(size: Size, *, room: int) -> Resize | None:
    """Up to what there is room for; `room` counts further workers."""
    limit = min(size.replicas + room, wanted(size))
    workers = max((number for number in size.allowed if size.replicas < number <= limit), default=None)
    if workers is None:
        return None
    return Resize(workers, f"the nodes have room for {room} more worker{'s' * (room != 1)}")
