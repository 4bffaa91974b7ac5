"""What workers print when the run folder is on S3, where a process that is killed can leave nothing."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
from torch.distributed import TCPStore

from shardline.components.common.owner import hold
from shardline.components.common.storage import Storage
from shardline.components.common.workers import Job, WorkerContext
from shardline.components.elasticity.logs import Logs
from shardline.components.elasticity.processes import Processes
from shardline.components.elasticity.worker_main import describe
from tests.commands import eventually


def talk(context: WorkerContext, *, then: str) -> None:
    """Print who this worker is, and end as `then` says."""
    print(f"rank {context.rank} is here", flush=True)
    if then == "abort" and context.rank == 1:
        os.abort()
    if then == "fail" and context.rank == 1:
        raise ValueError("for no reason")
    if then != "end":
        time.sleep(60)


class World:
    def __init__(self, run: Storage, *, every: float) -> None:
        self.run, self.generation = run, 0
        self.logs = Logs(run, every=every)
        self.processes: Processes
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def start(self, then: str) -> None:
        self.generation += 1
        job = Job(name="test", entry=f"{__name__}:talk", arguments=lambda generation, world: {"then": then})
        with hold(self.run) as lease:
            described = describe(job, generation=self.generation, world=2, run=self.run, fence=lease.fence, timeout=10)
        told = {**described, "host": "127.0.0.1", "port": self._store.port}
        self.processes.start(told, count=2, first_rank=0, world=2)

    def log(self, rank: int) -> str:
        path = f"logs/{self.generation:06d}/{rank:05d}.log"
        return self.run.read(path).decode() if self.run.exists(path) else ""


@pytest.fixture
def world(s3: str, request: pytest.FixtureRequest) -> Iterator[World]:
    made = World(Storage(s3), every=getattr(request, "param", 600.0))
    with made.logs:
        made.processes = Processes(module=__name__, url=s3, logs=made.logs)
        yield made
        made.processes.close()


def ended(world: World, *, rank: int) -> int:
    eventually(lambda: any(end.rank == rank for end in world.processes.ends()))
    return next(end.exit_code for end in world.processes.ends() if end.rank == rank)


def test_workers_leave_all_they_printed_however_they_end(world: World) -> None:
    world.start("end")
    assert ended(world, rank=0) == 0
    eventually(lambda: world.log(0) == "rank 0 is here\n")
    world.start("fail")
    assert ended(world, rank=1) == 1
    eventually(lambda: "rank 1 is here" in world.log(1))
    assert "for no reason" in world.log(1)
    world.start("abort")
    assert ended(world, rank=1) == -signal.SIGABRT
    eventually(lambda: "rank 1 is here" in world.log(1))
    assert "Fatal Python error: Aborted" in world.log(1)
    assert "in talk" in world.log(1)


@pytest.mark.parametrize("world", [0.1], indirect=True)
def test_it_is_there_while_workers_run(world: World) -> None:
    world.start("sleep")
    eventually(lambda: all(f"rank {rank} is here" in world.log(rank) for rank in (0, 1)))
    assert len(world.processes.pids()) == 2


def test_an_agent_that_ends_leaves_the_logs_of_its_workers_in_place(s3: str) -> None:
    world = World(Storage(s3), every=600.0)
    with world.logs:
        folder = world.logs.folder
        assert folder is not None
        world.processes = Processes(module=__name__, url=s3, logs=world.logs)
        world.start("sleep")
        eventually(lambda: [file.stat().st_size > 0 for file in folder.glob("*.log")] == [True, True])
        world.processes.close()
    assert ["is here" in world.log(rank) for rank in (0, 1)] == [True, True]
