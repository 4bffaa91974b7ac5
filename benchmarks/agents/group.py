"""A group of agents in virtual time: each with its real seat and board, and in place of the rest as little as will do.

Called by `measure` and the unit tests. What decides is what an agent in a pod has: `seat`, with what is read when
(`lookout`) and written when (`presence`), the board with its watches, encoding and pace, who takes the lead, and how a
generation is formed and judged (`forming`, `choice`, `leading.succeeding`). In place of worker processes, of what is in
memory and of the lead's calls to storage there are a few lines here.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from benchmarks.agents.world import Api, ApiClient, ApiWatch, World
from shardline.components.common.errors import EXIT_PEER_LOST, Superseded
from shardline.components.elasticity.ends import End
from shardline.components.elasticity.group import forming
from shardline.components.elasticity.group.aside import Asides
from shardline.components.elasticity.group.kube_board import KubernetesBoard
from shardline.components.elasticity.group.kube_records import MemberReader
from shardline.components.elasticity.group.leading import succeeding
from shardline.components.elasticity.group.leaving import Leaving
from shardline.components.elasticity.group.seat import Seat
from shardline.components.elasticity.group.state import Member, State
from shardline.components.elasticity.pod import Pod
from shardline.components.elasticity.snapshots import choice
from shardline.components.elasticity.snapshots.keeper import Held

_GROUP = "run-1a2b3c4d"
_JOB = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "run", "uid": "1a2b3c4d"}
#: Seconds between two snapshots, and until a machine's part of one is copied to another's.
_SNAPSHOT_SECONDS, _COPY_SECONDS = 60.0, 2.0
#: After a process is gone its peers notice that their connections are.
_NOTICE_SECONDS = 1.0
_SETTLE_BEATS = 8


class Workers:
    """In place of `Processes`: one worker, that runs until it is stopped or loses a peer."""

    ready = True

    def __init__(self) -> None:
        self.generation, self.rank = 0, 0
        self._ends: tuple[End, ...] = ()

    def start(self, job: Mapping[str, Any], *, count: int, first_rank: int, world: int) -> None:
        self.generation, self.rank, self._ends = int(job["generation"]), first_rank, ()

    def stop(self, *, patience: float = 0.0) -> None:
        self.generation, self._ends = 0, ()

    def warm(self) -> None:
        pass

    def ends(self) -> tuple[End, ...]:
        return self._ends

    def end(self, exit_code: int) -> None:
        if self.generation and not self._ends:
            self._ends = (End(rank=self.rank, pid=1, exit_code=exit_code),)


class Memory:
    """In place of `Keeper`: a snapshot of the running generation every minute, its copy soon afterwards."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._kept = ""

    def look(self, member: str, state: State) -> None:
        self._kept = state.kept

    def held(self) -> Held:
        agent, workers = self._agent, self._agent.workers
        step = int((agent.world.now - agent.begun) / _SNAPSHOT_SECONDS)
        if not workers.generation or not step:
            return Held({}, {})
        files = self._files(workers.rank)
        copied = step if (agent.world.now - agent.begun) % _SNAPSHOT_SECONDS > _COPY_SECONDS else step - 1
        before = (workers.rank - 1) % agent.known_world
        copies = {self._name(copied): self._files(before)} if copied else {}
        return Held(self._needed(step, files), copies)

    def _needed(self, step: int, files: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        names = (self._name(each) for each in range(max(1, step - 1), step + 1))
        return {name: files for name in names if name >= self._kept}

    def _name(self, step: int) -> str:
        return f"{self._agent.workers.generation:06d}-{step:012d}"

    def _files(self, rank: int) -> tuple[str, ...]:
        number, world = self._agent.workers.generation, self._agent.known_world
        own = (f"g{number:06d}-{rank:05d}.safetensors",)
        return (*own, f"record-{world}.json") if rank == 0 else own


class _NoCuts:
    """In place of `Reach`: everybody reaches everybody."""

    def tried(self, member: Member, state: State, members: object) -> tuple[int, tuple[str, ...]]:
        return (state.tries if state.phase == "gathering" else member.tried), ()


class Agent:
    """One agent.

    Attributes:
        begun: when its generation's workers began; lives: whether it does anything.
    """

    def __init__(self, group: Group, place: int) -> None:
        self.group, self.world = group, group.world
        pick = random.Random(f"{group.seed}-{place}")
        self.id = f"worker-{place}-{pick.getrandbits(32):08x}"
        host = ".".join(str(each) for each in (10, pick.randrange(64), pick.randrange(256), pick.randrange(256)))
        self.client = ApiClient(group.api)
        pod = Pod(name=f"run-worker-{place}", uid=self.id, namespace="team", labels={}, controller=_JOB)
        board = KubernetesBoard(
            self.client,  # type: ignore[arg-type]
            group=_GROUP,
            pod=pod,
            most=group.size.most,
            watch=lambda client, kind, **more: ApiWatch(client, kind, pick=pick.uniform, **more),
            clock=lambda: self.world.now,
            pick=pick,
        )
        # Each reads every version of a record once; here all may do so together.
        board._members = group.records
        node = f"ip-{host.replace('.', '-')}.eu-central-1.compute.internal"
        self.workers = Workers()
        self.begun, self.known_world = 0.0, 1
        address = f"{host}:{pick.randrange(32768, 61000)}"
        self.seat = Seat(
            board,
            member=Member(id=self.id, host=host, processes=1, node=node, address=address),
            processes=self.workers,  # type: ignore[arg-type]
            keeper=Memory(self),  # type: ignore[arg-type]
            asides=Asides(None),
            timeout=300,
            leaving=Leaving(grace=60),
            most=group.size.most,
            clock=lambda: self.world.now,
            pick=pick,
        )
        self.seat._reach = _NoCuts()  # type: ignore[assignment]
        self.lives = True
        self._lead: _Lead | None = None
        self._writes_at = float("inf")

    @property
    def leads(self) -> bool:
        return self._lead is not None and self.lives

    def start(self) -> None:
        self._write()
        self._turn()

    def _turn(self) -> None:
        """Once around the agent's loop."""
        if not self.lives:
            return
        state, _, _ = self.seat.look()
        if self._lead is not None:
            try:
                self._lead.turn()
            except Superseded:
                self._lead, self.seat.leads = None, False
        elif self.seat.is_next:
            self._take()
        elif state is not None:
            self.follow(state)
        self._expect_to_write()
        self.world.at(max(self.world.now + self.seat.board.poll_seconds, self.client.free), self._turn)

    def follow(self, state: State) -> None:
        before = self.workers.generation
        self.seat.follow(state)
        if self.workers.generation and self.workers.generation != before:
            self.begun, self.known_world = self.group.began(self.workers.generation), state.world

    def _take(self) -> None:
        """As `Leading.take`."""
        board, known = self.seat.board, self.seat.known[0]
        state, version = board.state()
        if (state.age if state else None) == (known.age if known else None):
            self.seat.leads = board.swap(version, succeeding(state, self.id))
            if self.seat.leads:
                self.group.took(self)
                self._lead = _Lead(self)

    def _write(self) -> None:
        self._writes_at = float("inf")
        if self.lives:
            self.seat.presence.write()
            self._expect_to_write()

    def _expect_to_write(self) -> None:
        due = self.seat.presence.due
        if due < self._writes_at:
            self._writes_at = due
            self.world.at(due, lambda: self._write() if self._writes_at == due else None)


class _Lead:
    """In place of `Leading`, which waits: the same decisions, one look after the other."""

    def __init__(self, agent: Agent) -> None:
        self._agent, self._seat, self._size = agent, agent.seat, agent.group.size
        self._gathering = forming.Gathering(self._size, lambda world: True)
        self._upkeep_at = 0.0
        # As `Leading.run` begins: the lease, and the nodes to do without.
        self._change(fence=1)

    def turn(self) -> None:
        state, _, living = self._seat.known
        if state is None or state.leader != self._seat.id:
            raise Superseded("another agent leads the group now")
        self._agent.follow(state)
        if state.phase == "gathering":
            members = self._gathering.members(state, living, now=self._agent.world.now)
            if members:
                self._form(state, living, members)
        else:
            self._see_through(state, living)

    def _form(self, state: State, living: list[Member], members: list[Member]) -> None:
        found = choice.newest(living, first_generation=state.first_snapshots)
        generation = self._agent.group.next_generation()
        ranks, world = forming.ranks_of(members)
        told = {
            "entry": "shardline.components.training.worker:train",
            "generation": generation,
            "run": "s3://bucket/runs/run",
            "host": self._seat.member.host,
            "port": 29500,
            "snapshot": choice.described(found, living) if found else None,
        }
        self._change(
            phase="running",
            generation=generation,
            ranks=ranks,
            world=world,
            nodes={member.id: member.node for member in members},
            serving=choice.serving(living),
            job=told,
        )

    def _see_through(self, state: State, living: list[Member]) -> None:
        course = forming.course(state, living)
        if course.failed or course.gone:
            cut = not course.gone and all(end.exit_code == EXIT_PEER_LOST for end in course.failed)
            again = state.round + 1
            self._change(phase="gathering", round=again, tries=again if cut else state.tries, generation=0)
            self._change(aside=[])
            self._gathering = forming.Gathering(self._size, lambda world: True)
        elif self._agent.world.now >= self._upkeep_at:
            self._upkeep_at = self._agent.world.now + self._seat.board.beat_seconds
            if news := choice.news(state, living):
                self._change(**news)

    def _change(self, **changes: Any) -> None:
        """As `Leading.change`."""
        while True:
            state, version, _ = self._seat.look()
            if state is None or state.leader != self._seat.id:
                raise Superseded("another agent leads the group now")
            if self._seat.board.swap(version, state.changed(**changes)):
                return


class Group:
    """`count` agents, which start within some seconds.

    Attributes:
        leaders: those that took the lead, with the moment.
    """

    def __init__(self, count: int, *, within: float, seed: int = 1) -> None:
        self.seed, self.world = seed, World()
        self.api = Api(self.world)
        beat = max(1.0, count / 400)
        self.size = forming.Size(least=max(1, count // 2), most=count, settle=_SETTLE_BEATS * beat)
        self.records = MemberReader()
        self.leaders: list[tuple[float, Agent]] = []
        self.generation = 0
        self._began = 0.0
        self.agents = [Agent(self, place) for place in range(count)]
        pick = random.Random(seed)
        for each in self.agents:
            self.world.at(pick.uniform(0, within), each.start)

    @property
    def leader(self) -> Agent:
        (found,) = [each for each in self.agents if each.leads]
        return found

    def took(self, agent: Agent) -> None:
        """Note who leads.

        Raises:
            AssertionError: another one leads.
        """
        assert not any(each.leads for each in self.agents), "two lead"
        self.leaders.append((self.world.now, agent))

    def next_generation(self) -> int:
        self.generation += 1
        self._began = self.world.now
        return self.generation

    def began(self, generation: int) -> float:
        """When all its workers began to train, as they see it: together."""
        return self._began

    def trains(self, members: int, *, after: int = 0) -> bool:
        """Whether that many are at work in one generation later than `after`, and have not lost each other."""
        if self.generation <= after:
            return False
        working = [each for each in self.agents if each.lives and each.workers.generation == self.generation]
        return len(working) == members and not any(each.workers.ends() for each in working)

    def lose(self, agent: Agent, *, pod: bool) -> None:
        """An agent is gone, with its pod's objects after a moment, or with its node and all stays as it was."""
        agent.lives = False
        if pod:
            name = f"{_GROUP}-{agent.id}"
            self.world.at(self.world.now + _NOTICE_SECONDS, lambda: self.api.objects.delete("Lease", name) and None)
        self._notice()

    def kill_worker(self, agent: Agent) -> None:
        agent.workers.end(-9)
        self._notice()

    def _notice(self) -> None:
        """The workers' peers end, too."""
        generation = self.generation

        def notice() -> None:
            for each in self.agents:
                if each.lives and each.workers.generation == generation:
                    each.workers.end(EXIT_PEER_LOST)

        self.world.at(self.world.now + _NOTICE_SECONDS, notice)
