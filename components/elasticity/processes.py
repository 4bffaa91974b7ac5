"""The worker processes of one agent. Called by the agents; `process_server` is the other side."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from select import select
from typing import Any

from shardline.components.common.processes import child_environment
from shardline.components.elasticity.channel import Channel
from shardline.components.elasticity.ends import End
from shardline.components.elasticity.logs import Logs
from shardline.components.elasticity.process_server import COMMAND, environment_for

#: Time for a worker to close what it has open.
_STOP_SECONDS = 5.0


class Processes:
    """Workers of one generation at a time, forked by a server of this agent's own.

    Args:
        module: what the server imports beforehand.
        url: of the run, for whoever looks at a list of processes.
        memory: a folder in memory for what workers leave to those that come after them.
        logs: of the workers, open; not needed for a run folder on this machine.

    Attributes:
        generation: theirs; 0 when there are none.
        ready: whether the server has imported what it is to, so that workers begin at once.
    """

    def __init__(self, *, module: str, url: str, memory: Path | None = None, logs: Logs | None = None) -> None:
        self.generation, self.ready = 0, False
        self._folders = {"memory": memory, "logs": logs.folder if logs else None}
        self._logs = logs
        self._arguments = (module, url)
        self._server: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._running: dict[int, int] = {}
        self._ends: list[End] = []

    def warm(self) -> None:
        """Have a server, so that it imports what it needs while there is nothing for it to do."""
        if self._server is not None and self._server.poll() is None:
            return
        self.close()
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, *COMMAND, str(theirs.fileno()), *self._arguments]
            self._server = subprocess.Popen(
                command,
                env=environment_for(child_environment()),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self._channel = Channel(ours)

    def start(self, job: dict[str, Any], *, count: int, first_rank: int, world: int) -> None:
        """Start `count` workers, in place of those that there are.

        Args:
            job: as `worker_main` takes it; with `host` and `port` of the generation's store.
        """
        self.stop()
        self.warm()
        threads = max(1, (os.cpu_count() or 1) // count)
        environment = child_environment(
            MASTER_ADDR=job["host"], MASTER_PORT=str(job["port"]), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(count)
        )
        places = [{"RANK": str(first_rank + place), "LOCAL_RANK": str(place)} for place in range(count)]
        self.generation = int(job["generation"])
        self._running = {first_rank + place: 0 for place in range(count)}
        self._ends = []
        folders = {name: str(folder) if folder else None for name, folder in self._folders.items()}
        described = {**job, **folders, "threads": threads}
        self._ask(start=described, environment=environment, places=places)

    def ends(self) -> tuple[End, ...]:
        """Of the workers that have ended, in the order in which they did."""
        self._receive(0.0)
        return tuple(self._ends)

    def pids(self) -> dict[int, int]:
        """The process id of each rank that has not ended; 0 until it is known."""
        self._receive(0.0)
        return dict(self._running)

    def wait(self, seconds: float) -> None:
        """Sleep; less long when a worker ends meanwhile."""
        deadline, before = time.monotonic() + seconds, len(self._ends)
        while (left := deadline - time.monotonic()) > 0 and len(self._ends) == before:
            if self._channel is None:
                time.sleep(left)
            else:
                self._receive(left)

    def stop(self, *, patience: float = _STOP_SECONDS) -> None:
        """Leave no worker behind: first in order, then by force."""
        if self._running and not self._signal(signal.SIGTERM, patience=patience):
            self._signal(signal.SIGKILL, patience=_STOP_SECONDS)
        if self._running:
            self.close()  # a server that does not answer, or has not begun to
        self._running, self._ends, self.generation = {}, [], 0

    def close(self) -> None:
        """Leave nothing behind. What is started afterwards has a server of its own."""
        if self._channel is not None:
            self._channel.close()
        if self._server is not None:
            # The workers that it has end with it.
            self._server.kill()
            self._server.wait()
        self._server = self._channel = None
        self.ready = False
        self._note_the_rest()

    def _signal(self, number: signal.Signals, *, patience: float) -> bool:
        """Whether no worker is left within `patience` seconds."""
        self._ask(signal=int(number))
        deadline = time.monotonic() + patience
        while self._running and (left := deadline - time.monotonic()) > 0:
            self._receive(left)
        return not self._running

    def _ask(self, **request: Any) -> None:
        if self._channel is None:
            return
        try:
            self._channel.send(**request)
        except OSError:
            self.close()

    def _receive(self, seconds: float) -> None:
        """Take note of what the server has to say, for which it is waited so long."""
        if self._channel is None or not select([self._channel], [], [], seconds)[0]:
            return
        messages = self._channel.receive()
        if messages is None:
            self.close()
            return
        for message in messages:
            self._note(message)

    def _note(self, message: dict[str, int]) -> None:
        if "ready" in message:
            self.ready = True
        elif "started" in message:
            self._running[message["started"]] = message["pid"]
        else:
            self._running.pop(message["ended"], None)
            self._ended(End(rank=message["ended"], pid=message["pid"], exit_code=message["exit_code"]))

    def _note_the_rest(self) -> None:
        """Workers end with their server."""
        for rank, pid in sorted(self._running.items()):
            self._ended(End(rank=rank, pid=pid, exit_code=-signal.SIGKILL))
        self._running = {}

    def _ended(self, end: End) -> None:
        self._ends.append(end)
        if self._logs:
            self._logs.ended(generation=self.generation, rank=end.rank)
