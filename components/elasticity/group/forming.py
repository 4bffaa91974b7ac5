"""Who takes part in the next generation, who leads, and what ends a generation. Pure: members and seconds in, a
decision out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shardline.components.elasticity.ends import End
from shardline.components.elasticity.group.state import Member, State

#: For how long, in times to settle, members that live are waited for: one that hangs is silent before.
_LATE = 10


@dataclass(frozen=True, kw_only=True)
class Size:
    """How many members a group has.

    Attributes:
        least: fewer than that do not begin; most: more than that do not take part.
        settle: seconds that a round lasts for members that may yet come, once there are enough.
    """

    least: int
    most: int
    settle: float


class Pulse:
    """Which members live: those whose record has changed not long ago, by this machine's clock alone."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float]] = {}
        self._looked: float | None = None

    def living(self, members: Sequence[Member], *, silence: float, now: float) -> list[Member]:
        """Those of `members`, as just read, not silent for `silence` seconds; one that left is not there."""
        # While nobody could look, nobody was silent: the place where they meet may have been away for all.
        gap = now - self._looked if self._looked is not None else 0.0
        unseen = gap if gap > silence / 2 else 0.0
        self._looked = now
        seen = {}
        for member in members:
            beat, since = self._seen.get(member.id, (-1, now))
            seen[member.id] = (beat, since + unseen) if beat == member.beat else (member.beat, now)
        self._seen = seen
        return [member for member in members if now - seen[member.id][1] <= silence]


class Gathering:
    """A round, as it goes on."""

    def __init__(self, size: Size, fits: Callable[[int], bool]) -> None:
        self._size, self._fits = size, fits
        self._present: set[str] = set()
        self._since: float | None = None

    def members(self, state: State, living: Sequence[Member], *, now: float) -> list[Member]:
        """As `gathered`, at the moment `now`."""
        there = {member.id for member in living}
        if self._since is None or not there <= self._present:
            self._since = now
        self._present = there
        return gathered(state, living, size=self._size, waited=now - self._since, fits=self._fits)


@dataclass(frozen=True)
class Course:
    """How a generation stands.

    Attributes:
        failed: the ends of workers that ended badly; gone: members that are gone, in words.
        ended: whether all workers ended well; leaving: whether a member that takes part is asked to leave.
    """

    failed: list[End]
    gone: list[str]
    ended: bool
    leaving: bool


def course(state: State, living: Sequence[Member]) -> Course:
    """That of the generation of `state`."""
    working = at_work(state, living)
    return Course(
        failed=[end for member in working for end in member.ends if end.exit_code],
        gone=[f"agent {name} is gone" for name in lost(state, living)],
        ended=len(working) == len(state.ranks) and all(member.done for member in working),
        leaving=any(member.leaving for member in working),
    )


def next_leader(state: State | None, living: Sequence[Member]) -> str | None:
    """The member that has to take the lead; None while somebody leads."""
    if state is not None and (state.phase == "closed" or state.leader in {member.id for member in living}):
        return None
    # One on a node that is set aside would only have to leave.
    aside = state.aside if state is not None else ()
    able = [member for member in living if not member.leaving]
    return min(((member.node in aside, member.id) for member in able), default=(False, None))[1]


def gathered(
    state: State, living: Sequence[Member], *, size: Size, waited: float, fits: Callable[[int], bool]
) -> list[Member]:
    """The members of the next generation, in the order of their ranks; none while it is to be waited for more.

    The leader comes first, then those that took part before, so that ranks change little. Only who has seen the round
    takes part: one that is gone does not, even while it isn't silent for long enough to know. Of those that are there
    as many take part as make a world that `fits`; the others wait. One that lives and has yet to see the round is
    waited for, a spare too; one that is cold or not there only before the first generation: whoever comes later makes
    the group grow. In a round in which they try whether they reach each other, only those take part that all do. Who is
    on a node that is set aside takes part where there would be too few without, and the leader.

    Args:
        waited: seconds since the round began, or since the last member came.
    """
    staying = [member for member in living if not member.leaving]
    there = [member for member in staying if member.round == state.round and member.generation == 0]
    if state.tries == state.round:
        there = [member for member in there if member.tried == state.round]
    order = {state.leader: -2} | {name: rank for name, rank in state.ranks.items() if name != state.leader}
    there.sort(key=lambda member: (_unwanted(state, member), order.get(member.id, 1 << 62), member.id))
    wanted = sum(not _unwanted(state, member) for member in there)
    if not any(member.id == state.leader for member in there):
        return []
    first = not state.ranks
    here = {member.id for member in there}
    missing = [member for member in staying if member.id not in here and not _unwanted(state, member)]
    late = [member for member in missing if first or member.round]
    if wanted < size.most and ((late and waited < _LATE * size.settle) or (first and waited < size.settle)):
        return []
    there = connected(there)
    wanted = sum(not _unwanted(state, member) for member in there)
    least, most = max(1, size.least), min(len(there), size.most)
    for count in (*range(min(wanted, most), least - 1, -1), *range(max(wanted + 1, least), most + 1)):
        if fits(sum(member.processes for member in there[:count])):
            return there[:count]
    # With all that there may be nothing else is to be waited for: forming them tells what does not fit.
    return there[: size.most] if len(there) >= size.most else []


def apart(one: Member, other: Member) -> bool:
    """Whether either could not reach the other."""
    return other.id in one.cut_off or one.id in other.cut_off


def connected(members: Sequence[Member]) -> list[Member]:
    """Those of `members` that all reach each other, in their order; the first one, which leads, among them.

    Not always as many as could be, which is a hard problem: whoever is cut off from most others is left out first.
    """
    staying = list(members)
    cuts = {member.id: len(others) for member, others in zip(staying, _cuts(staying), strict=True)}
    while any(cuts.values()):
        worst = staying.pop(max(range(1, len(staying)), key=lambda place: (cuts[staying[place].id], place)))
        del cuts[worst.id]
        for member in staying:
            cuts[member.id] -= apart(member, worst)
    return staying


def _cuts(members: Sequence[Member]) -> list[set[str]]:
    """Of each of `members` the others that are apart from it. Few are: what is told is gone through, not all pairs."""
    found: dict[str, set[str]] = {member.id: set() for member in members}
    for member in members:
        for other in member.cut_off:
            if other in found and other != member.id:
                found[member.id].add(other)
                found[other].add(member.id)
    return [found[member.id] for member in members]


def is_isolated(leader: Member, members: Sequence[Member]) -> bool:
    """Whether more of `members` reach each other than are left with `leader`."""
    others = [member for member in members if member.id != leader.id]
    return bool(others) and len(connected(others)) > len(connected([leader, *others]))


def yields(state: State, living: Sequence[Member], *, size: Size, fits: Callable[[int], bool]) -> bool:
    """Whether the leader is to leave: its node is set aside, and the others are enough without it."""
    if not any(member.id == state.leader and member.node in state.aside for member in living):
        return False
    others = [member for member in living if member.node not in state.aside and not member.leaving]
    numbers = range(max(1, size.least), min(len(others), size.most) + 1)
    return any(fits(sum(member.processes for member in others[:count])) for count in numbers)


def is_left_out(state: State, member: Member) -> bool:
    """Whether the generation at work does without a member because of its node."""
    return state.phase == "running" and member.id not in state.ranks and member.node in state.aside


def _unwanted(state: State, member: Member) -> bool:
    return member.node in state.aside and member.id != state.leader


def ranks_of(members: Sequence[Member]) -> tuple[dict[str, int], int]:
    """The first rank of each member, and the world size."""
    ranks, world = {}, 0
    for member in members:
        ranks[member.id] = world
        world += member.processes
    return ranks, world


def lost(state: State, living: Sequence[Member]) -> list[str]:
    """Members of the generation that are gone."""
    there = {member.id for member in living}
    return [name for name in state.ranks if name not in there]


def at_work(state: State, living: Sequence[Member]) -> list[Member]:
    """Members of the generation, as far as they have begun with it."""
    return [member for member in living if member.id in state.ranks and member.generation == state.generation]


def could_grow(state: State, living: Sequence[Member], *, size: Size, fits: Callable[[int], bool]) -> bool:
    """Whether members that wait, warm, and reach all others, would make the next generation a larger one."""
    able = [each for each in living if not each.leaving and each.node not in state.aside]
    waiting = [each for each in able if each.id not in state.ranks and each.round]
    if waiting:
        cut = dict(zip((each.id for each in living), _cuts(living), strict=True))
        waiting = [each for each in waiting if cut[each.id].isdisjoint(state.ranks)]
    room = size.most - len(state.ranks)
    return any(
        fits(state.world + sum(member.processes for member in waiting[:count]))
        for count in range(1, min(room, len(waiting)) + 1)
    )
