"""Worker processes and the server that forks them: what becomes of both when either is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import TCPStore

from shardline.components.common.owner import hold
from shardline.components.common.processes import start_time
from shardline.components.common.storage import Storage
from shardline.components.common.workers import Job, WorkerContext
from shardline.components.elasticity.processes import Processes
from shardline.components.elasticity.worker_main import describe
from tests.commands import environment, eventually

PATIENCE = 60.0


def leave_word(context: WorkerContext, *, then: str) -> None:
    """Say who this worker is, and end as `then` says."""
    told = {"rank": context.rank, "world": context.world, "parent": os.getppid(), "word": os.environ["WORD"]}
    context.run.write(f"words/{context.generation}-{context.rank}.json", json.dumps(told).encode())
    if then == "sleep":
        time.sleep(PATIENCE)
    if then == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        context.run.write("deaf", b"")
        time.sleep(PATIENCE)
    if then == "fail" and context.rank == 1:
        raise ValueError("for no reason")


class World:
    def __init__(self, folder: Path) -> None:
        self.run = Storage(str(folder / "run"))
        self.processes = Processes(module=__name__, url=self.run.url)
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.generation = 0

    def start(self, then: str, *, count: int = 2) -> None:
        self.generation += 1
        job = Job(name="test", entry=f"{__name__}:leave_word", arguments=lambda generation, world: {"then": then})
        with hold(self.run) as lease:
            described = describe(
                job, generation=self.generation, world=count, run=self.run, fence=lease.fence, timeout=10
            )
        told = {**described, "host": "127.0.0.1", "port": self._store.port}
        self.processes.start(told, count=count, first_rank=0, world=count)

    def words(self) -> list[dict[str, Any]]:
        names = [name for name in self.run.names("words") if name.startswith(f"{self.generation}-")]
        return [json.loads(self.run.read(f"words/{name}")) for name in sorted(names)]

    def ends(self, count: int = 2) -> dict[int, int]:
        eventually(lambda: len(self.processes.ends()) == count)
        return {end.rank: end.exit_code for end in self.processes.ends()}


def all_gone(pids: list[int]) -> bool:
    return all(start_time(pid) is None for pid in pids)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setenv("WORD", "first")
    made = World(tmp_path)
    yield made
    made.processes.close()


def test_workers_are_forked_by_one_server_and_have_the_agents_environment_of_now(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.start("end")
    assert world.ends() == {0: 0, 1: 0}
    first = world.words()
    monkeypatch.setenv("WORD", "second")
    world.start("fail")
    assert world.ends() == {0: 0, 1: 1}
    second = world.words()
    assert [(word["rank"], word["world"], word["word"]) for word in first] == [(0, 2, "first"), (1, 2, "first")]
    assert [word["word"] for word in second] == ["second", "second"]
    assert len({word["parent"] for word in (*first, *second)}) == 1
    assert "for no reason" in world.run.read("logs/000002/00001.log").decode()


def test_the_server_has_one_thread(world: World) -> None:
    world.start("end")
    server = world.words()[0]["parent"] if world.ends() else 0
    assert len(list(Path(f"/proc/{server}/task").iterdir())) == 1


def test_a_worker_that_is_killed_is_told_by_its_signal(world: World) -> None:
    world.start("sleep")
    eventually(lambda: len(world.words()) == 2)
    os.kill(world.processes.pids()[1], signal.SIGKILL)
    assert world.ends(1) == {1: -signal.SIGKILL}
    (left,) = world.processes.pids().values()
    world.processes.stop()
    assert all_gone([left]) and world.processes.generation == 0


def test_workers_that_do_not_hear_are_ended_by_force(world: World) -> None:
    world.start("deaf", count=1)
    eventually(lambda: world.run.exists("deaf"))
    (pid,) = world.processes.pids().values()
    world.processes.stop()
    assert all_gone([pid])


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_a_server_that_is_lost_takes_its_workers_along_and_another_one_comes(
    world: World, fault: signal.Signals
) -> None:
    world.start("sleep")
    eventually(lambda: len(world.words()) == 2)
    server, pids = world.words()[0]["parent"], list(world.processes.pids().values())
    os.kill(server, fault)
    if fault == signal.SIGKILL:
        assert world.ends() == {0: -signal.SIGKILL, 1: -signal.SIGKILL}
    else:
        world.processes.stop()
    eventually(lambda: all_gone([server, *pids]))
    world.start("end")
    assert world.ends() == {0: 0, 1: 0}
    assert world.words()[0]["parent"] != server


SCRIPT = """
import sys, time
from pathlib import Path
from tests.commands import eventually
from tests.unit.elasticity.test_processes import World
world = World(Path(sys.argv[1]))
world.start("sleep")
eventually(lambda: len(world.words()) == 2)
print(world.words()[0]["parent"], *world.processes.pids().values(), flush=True)
time.sleep(60)
"""


def test_nothing_is_left_of_an_agent_that_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, tmp_path], stdout=subprocess.PIPE, text=True, env=environment(WORD="killed")
    ) as agent:
        assert agent.stdout
        pids = [int(word) for word in agent.stdout.readline().split()]
        agent.kill()
    assert len(pids) == 3
    eventually(lambda: all_gone(pids))
