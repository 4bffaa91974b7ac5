"""Plain torchrun with `bare`: the same faults, and what they cost. Called by the benchmark."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.recovery.bare import STEPS_FILE
from shardline.components.common.processes import child_environment
from shardline.components.elasticity.drill.judging import Recovery, Struck, recoveries

_PATIENCE = 300.0
_POLL_SECONDS = 0.1
#: Seconds of steps before each fault.
_PAUSE = 3.0


class Job:
    """Two training processes: of one agent, or of two that meet in a rendezvous which the first one hosts."""

    def __init__(self, folder: Path, *, agents: int, every: int, timeout: int) -> None:
        (folder / STEPS_FILE).touch()
        self._folder, self._agents, self._arguments = folder, agents, [str(folder), str(every), str(timeout)]
        self._port = free_port()
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Job:
        for _ in range(self._agents):
            self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        for agent in self._running:
            end(agent)

    def start(self) -> None:
        command = [sys.executable, "-m", "torch.distributed.run", "--max-restarts", "1000"]
        command += ["--nnodes", "1" if self._agents == 1 else f"1:{self._agents}"]
        command += ["--nproc-per-node", str(2 // self._agents), "--rdzv-backend", "c10d", "--rdzv-id", "recovery"]
        command += ["--rdzv-endpoint", f"127.0.0.1:{self._port}", "--rdzv-conf", f"is_host={int(not self._running)}"]
        command += ["-m", "benchmarks.recovery.bare", *self._arguments]
        # In the agents' own store, which is the default, gloo finds the addresses of workers that are gone.
        environment = child_environment(OMP_NUM_THREADS="1", TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
        with open(self._folder / "log", "ab") as log:
            agent = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        self._running.append(agent)

    def records(self) -> list[dict[str, Any]]:
        lines = (self._folder / STEPS_FILE).read_bytes().splitlines()
        return [json.loads(line) for line in lines if line.endswith(b"}")]

    def steps(self) -> list[dict[str, Any]]:
        return [record for record in self.records() if record["name"] == "train"]

    def wait_for(self, condition: Callable[[dict[str, Any]], bool]) -> None:
        """Until `condition` holds for the last step."""
        deadline = time.monotonic() + _PATIENCE
        while not (steps := self.steps()) or not condition(steps[-1]):
            if time.monotonic() > deadline or all(agent.poll() is not None for agent in self._running):
                raise SystemExit(f"torchrun does not go on:\n{(self._folder / 'log').read_text()[-2000:]}")
            time.sleep(_POLL_SECONDS)

    def strike(self, kind: str) -> None:
        if kind == "agent":
            # With its worker, as when a node goes: by itself the worker would live on.
            end(self._running.pop())
            return
        worker = children(self._running[0].pid)[-1]
        os.kill(worker, signal.SIGKILL if kind == "worker" else signal.SIGSTOP)


def campaign(folder: Path, *, kind: str, faults: int, every: int, timeout: int) -> list[Recovery]:
    """What `faults` of a kind cost, each made when all train together again."""
    struck = []
    folder.mkdir(parents=True)
    with Job(folder, agents=2 if kind == "agent" else 1, every=every, timeout=timeout) as job:
        job.wait_for(lambda step: bool(step["data"]["world"] == 2))
        for number in range(1, faults + 1):
            time.sleep(_PAUSE)
            generation = job.steps()[-1]["generation"]
            struck.append(Struck(number=number, kind=kind, victim=kind, time=time.time()))
            job.strike(kind)
            job.wait_for(lambda step, before=generation: bool(step["generation"] > before))  # type: ignore[misc]
            if kind == "agent":
                job.start()
            job.wait_for(lambda step: bool(step["data"]["world"] == 2))
        return recoveries(struck, job.steps())


def end(agent: subprocess.Popen[bytes]) -> None:
    """Kill an agent and what it has started."""
    workers = children(agent.pid)
    agent.kill()
    agent.wait()
    for worker in workers:
        os.kill(worker, signal.SIGKILL)


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
