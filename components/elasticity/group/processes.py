"""The worker processes of one agent. Called by `agent`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

from shardline.components.common.processes import child_environment
from shardline.components.elasticity.ends import End
from shardline.components.elasticity.worker_main import COMMAND

#: Time for a worker to close what it has open.
_STOP_SECONDS = 5.0
_POLL_SECONDS = 0.05


class Processes:
    """Workers of one generation at a time.

    Attributes:
        generation: theirs; 0 when there are none.
    """

    def __init__(self) -> None:
        self.generation = 0
        self._started: list[subprocess.Popen[bytes]] = []
        self._first_rank = 0

    def start(self, job: dict[str, Any], *, count: int, first_rank: int, world: int) -> None:
        """Start `count` workers, in place of those that there are.

        Args:
            job: as `worker_main` takes it; with `host` and `port` of the generation's store.
        """
        self.stop()
        threads = max(1, (os.cpu_count() or 1) // count)
        described = json.dumps({**job, "threads": threads})
        for place in range(count):
            environment = child_environment(
                MASTER_ADDR=job["host"],
                MASTER_PORT=str(job["port"]),
                RANK=str(first_rank + place),
                LOCAL_RANK=str(place),
                WORLD_SIZE=str(world),
            )
            self._started.append(
                subprocess.Popen([sys.executable, *COMMAND, described], env=environment, stdin=subprocess.DEVNULL)
            )
        self.generation, self._first_rank = int(job["generation"]), first_rank

    def ends(self) -> tuple[End, ...]:
        """Of the workers that have ended."""
        found = []
        for place, process in enumerate(self._started):
            code = process.poll()
            if code is not None:
                found.append(End(rank=self._first_rank + place, pid=process.pid, exit_code=code))
        return tuple(found)

    def stop(self) -> None:
        """Leave no worker behind: first in order, then by force."""
        running = [process for process in self._started if process.poll() is None]
        for process in running:
            process.terminate()
        deadline = time.monotonic() + _STOP_SECONDS
        while time.monotonic() < deadline and any(process.poll() is None for process in running):
            time.sleep(_POLL_SECONDS)
        for process in running:
            process.kill()
            process.wait()
        self._started, self.generation = [], 0
