"""One round: all jobs looked at, and what follows from it done. Called by `serve`, every few seconds, in one thread.

What is kept between rounds is for how long things have held, and what was said; a process that takes over begins with
neither, and with the annotations that the one before left on the jobs. So it acts no sooner, and never twice.
"""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Iterator

from shardline.components.elasticity.operator import badnodes, deadnodes, ending, progress, sharing
from shardline.components.elasticity.operator.acting import Hands, Resized
from shardline.components.elasticity.operator.facts import Job, Pod, World
from shardline.components.elasticity.operator.notices import Notice
from shardline.components.elasticity.operator.pictures import Picture, Pictures
from shardline.components.elasticity.operator.settings import AUTOSCALE, FORCE_DELETE, PHASE_LABEL, Settings
from shardline.components.elasticity.operator.since import Since
from shardline.components.elasticity.operator.sizes import Size

#: Seconds, beside some intervals, after which a look at the cluster says nothing of the time since the one before.
_LONGEST = 15.0


class Rounds:
    """The rounds of one process."""

    def __init__(self, hands: Hands, pictures: Pictures, settings: Settings) -> None:
        self._hands, self._pictures, self._settings = hands, pictures, settings
        longest = _LONGEST + 3 * settings.interval
        self._since, self._room = Since(longest=longest), Since(longest=longest)
        #: The number of workers that each job was seen with, and when it was changed by somebody.
        self._replicas: dict[str, tuple[int, float]] = {}
        self._phases: dict[str, str] = {}
        #: When the Workflow of each job was looked at.
        self._asked: dict[str, float] = {}

    def turn(self, world: World) -> None:
        """Look at all of `world` once.

        Raises:
            ClusterLost: the API server is away; the next round begins anew.
        """
        now = time.monotonic()
        jobs = [job for job in world.jobs if self._settings.namespace in (None, job.namespace) and not job.deleted]
        self._forget(jobs)
        # A job that is over has nothing new to tell but its end.
        pictures = {job.uid: self._pictures.of(job) for job in jobs if not job.over}
        pictures |= {job.uid: Picture() for job in jobs if job.over}
        self._since.hold(self._holding(world, jobs, pictures), now=now)
        sizes = []
        for job in jobs:
            self._tell(world, job, pictures[job.uid])
            if job.over or self._ended(job, now=now) or self._cancelled(job, now=now):
                continue
            self._free_names(world, job, now=now)
            self._do_without(world, job, pictures[job.uid].aside)
            if (size := self._size(world, job, pictures[job.uid], now=now)) is not None:
                sizes.append(size)
        self._resize(world, {job.key: job for job in jobs}, sizes, now=now)

    def _forget(self, jobs: list[Job]) -> None:
        there = {job.uid for job in jobs}
        self._pictures.keep(there)
        self._hands.limit.forget(there)
        self._replicas = {uid: seen for uid, seen in self._replicas.items() if uid in there}
        self._phases = {uid: phase for uid, phase in self._phases.items() if uid in there}
        self._asked = {uid: at for uid, at in self._asked.items() if uid in there}

    def _holding(self, world: World, jobs: list[Job], pictures: dict[str, Picture]) -> Iterator[Hashable]:
        """What holds now, that something follows from when it has held for long enough."""
        for job in jobs:
            pods = [pod for pod in world.pods_of(job) if not pod.ended]
            if pods and len(pods) < job.replicas:  # with none there it may be the training operator that is away
                yield "missing", job.uid
            for pod in pods:
                if pod.obstacle is not None and not pod.ending:
                    yield "waiting", pod.uid
            for pod in deadnodes.held(world, job):
                yield "held", pod.uid
            if not job.over and ending.done_for(job, pictures[job.uid].done):
                yield "done", job.uid

    def _tell(self, world: World, job: Job, picture: Picture) -> None:
        """How the run is: on the job, and as an Event when it is in another phase."""
        done = ending.done_for(job, picture.done)
        running = sum(pod.running and not pod.ending for pod in world.pods_of(job))
        phase = progress.phase(job, running=running, status=picture.status, done=done)
        change = progress.patch(job, phase=phase, told=progress.told_by(picture.status))
        if change is not None:
            self._hands.mark(job, change)
        if self._phases.get(job.uid, job.labels.get(PHASE_LABEL)) != phase:
            generation = (picture.status or {}).get("generation")
            of = f" (generation {generation})" if phase == "training" and generation is not None else ""
            self._hands.say(job, Notice("Phase", f"{phase}{of}, {running} of {job.replicas} workers run"))
        self._phases[job.uid] = phase
        if picture.problem is not None:
            self._hands.say(job, Notice("RunUnreadable", picture.problem, "Warning"))

    def _ended(self, job: Job, *, now: float) -> bool:
        """Whether its run is done, in which case it is ended when it is time."""
        if not self._since.holds(("done", job.uid)):
            return False
        if self._since.seconds(("done", job.uid), now=now) >= self._settings.done:
            deleted, reason = ending.ends(job)
            if deleted:
                self._hands.end(job, Notice("RunDone", reason))
            else:
                self._hands.say(job, Notice("RunDone", reason, "Warning", once=True))
        return True

    def _cancelled(self, job: Job, *, now: float) -> bool:
        """Whether the Workflow that it belongs to was cancelled, in which case it is ended."""
        if now - self._asked.get(job.uid, -math.inf) < self._settings.progress:
            return False
        self._asked[job.uid] = now
        if job.owner is None or not self._hands.is_cancelled(job):
            return False
        reason = f"Workflow {job.owner['name']}, which it belongs to, was cancelled, and its launcher has left it"
        self._hands.end(job, Notice("RunCancelled", reason))
        return True

    def _free_names(self, world: World, job: Job, *, now: float) -> None:
        """Pods that a dead node holds are taken out, or it is said that they could be."""
        for pod in deadnodes.held(world, job):
            seconds = self._since.seconds(("held", pod.uid), now=now)
            if seconds < self._settings.dead_node:
                continue
            if deadnodes.is_asked_for(job.annotations, self._settings):
                self._hands.force(job, pod, seconds=seconds)
            else:
                text = f"{pod.name} ends on node {pod.node}, which is not ready, and holds its name until that is back"
                ask = f"to have it force-deleted, annotate the job {FORCE_DELETE}=true"
                self._hands.say(job, Notice("PodHeld", f"{text}; {ask}", "Warning", once=True))

    def _do_without(self, world: World, job: Job, aside: tuple[str, ...] | None) -> None:
        """New pods keep away from nodes that are set aside, then those that are there leave them."""
        if aside is None:
            return
        if badnodes.change(job, aside) is not None:
            self._hands.keep_away(job, aside)
            return
        pods = badnodes.on_them(world, job, aside)
        if badnodes.may_go(world, job, pods):
            for pod in pods:
                self._hands.move(job, pod)
            return
        for pod in pods:
            text = f"{pod.name} stays on node {pod.node}, which is set aside: no other node has room for it"
            ask = "`shardline nodes clear` takes the node in again"
            self._hands.say(job, Notice("NodeNeeded", f"{text}; {ask}", "Warning", once=True))

    def _size(self, world: World, job: Job, picture: Picture, *, now: float) -> Size | None:
        """What bears on its size; None where that is not ours to change."""
        changed = self._changed(job, now=now)
        if job.least >= job.most or job.phase == "suspended":
            return None
        if not self._settings.autoscale or job.annotations.get(AUTOSCALE) == "false":
            return None
        if job.managed is not None:
            self._hands.say(job, Notice("AutoscalingRefused", job.managed, "Warning", once=True))
            return None
        if picture.allowed is None:
            return None
        pods = [pod for pod in world.pods_of(job) if not pod.ended]
        there = [pod for pod in pods if not pod.ending]
        waiting = [pod for pod in there if self._since.holds(("waiting", pod.uid))]
        missing = self._since.seconds(("missing", job.uid), now=now)
        last = Resized.of(job, now=time.time())
        return Size(
            key=job.key,
            created=job.created,
            demands=job.demands,
            replicas=job.replicas,
            running=sum(pod.running for pod in there),
            allowed=picture.allowed,
            quiet=min(last.seconds if last else math.inf, now - changed),
            priority=max((pod.priority for pod in pods), default=0),
            pods=tuple(pod.uid for pod in there),
            waiting=(
                *(self._since.seconds(("waiting", pod.uid), now=now) for pod in waiting),
                *[missing] * (job.replicas - len(pods) if pods else 0),
            ),
            why=_why(waiting),
            worth=picture.worth,
            setbacks=last.setbacks if last else 0,
        )

    def _changed(self, job: Job, *, now: float) -> float:
        """When somebody changed its number of workers, as far as this process has seen."""
        before, at = self._replicas.get(job.uid, (job.replicas, -math.inf))
        self._replicas[job.uid] = (job.replicas, at if before == job.replicas else now)
        return self._replicas[job.uid][1]

    def _resize(self, world: World, jobs: dict[tuple[str, str], Job], sizes: list[Size], *, now: float) -> None:
        smaller = sharing.smaller(sizes, nodes=world.nodes, pods=world.pods, settings=self._settings)
        larger = sharing.larger(sizes, nodes=world.nodes, pods=world.pods, settings=self._settings)
        self._room.hold([jobs[key].uid for key in larger], now=now)
        for key, change in smaller.items():
            self._hands.resize(jobs[key], change)
        if smaller:
            return  # what was seen as room is another now
        for key, change in larger.items():
            if self._room.seconds(jobs[key].uid, now=now) >= self._settings.settle:
                self._hands.resize(jobs[key], change)


def _why(waiting: list[Pod]) -> str | None:
    return next((pod.obstacle for pod in waiting), None)
