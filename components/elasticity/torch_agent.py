"""torch's elastic agent behind our seam: it starts the workers of one machine, and starts them again.

Called by the steps that need worker processes. Each start is a new generation with a store of its own; an error that
would come again ends the job at once instead of using up the restarts.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException

from shardline.components.common.errors import Stopped
from shardline.components.common.events import EventLog
from shardline.components.common.owner import Lease
from shardline.components.common.processes import child_environment
from shardline.components.common.storage import Storage
from shardline.components.common.workers import Job
from shardline.components.elasticity.ends import End
from shardline.components.elasticity.rendezvous import LocalRendezvous
from shardline.components.elasticity.restarts import Restarts
from shardline.components.elasticity.worker_main import COMMAND, describe

_MONITOR_SECONDS = 0.1
_STOP_SECONDS = 5
#: torch's own count of restarts never ends a job: that is up to `Restarts`.
_ALWAYS = 1 << 30


class TorchElasticAgent:
    """An `Agent` of `processes` workers on this machine.

    Args:
        max_restarts: how often a failed group is started again.
        timeout: seconds of silence after which a worker counts a peer as lost.
    """

    def __init__(self, *, processes: int, max_restarts: int, timeout: int) -> None:
        self.processes = processes
        self._max_restarts = max_restarts
        self._timeout = timeout

    def run(self, job: Job, *, run: Storage, lease: Lease, events: EventLog) -> None:
        spec = WorkerSpec(
            role=job.name,
            local_world_size=self.processes,
            entrypoint=sys.executable,
            rdzv_handler=LocalRendezvous(job.name),
            max_restarts=_ALWAYS,
            monitor_interval=_MONITOR_SECONDS,
        )
        _silence_torch()
        # torch hands this environment on: a worker whose agent died before it could look knows whom to look for.
        os.environ.update(child_environment())
        # SIGTERM and SIGINT have a handler already, whose exception nothing on the way can swallow.
        os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGHUP,SIGQUIT"
        restarts = Restarts(job.name, run=run, lease=lease, events=events, most=self._max_restarts)
        agent = _Agent(spec, job=job, run=run, lease=lease, restarts=restarts, timeout=self._timeout)
        try:
            agent.run(job.name)
        except SignalException as error:
            raise Stopped("terminated", signum=int(error.sigval)) from None


class _Agent(LocalElasticAgent):
    """Numbers each start of the group as a generation, and stops early on an error that is final."""

    def __init__(
        self, spec: WorkerSpec, *, job: Job, run: Storage, lease: Lease, restarts: Restarts, timeout: int
    ) -> None:
        super().__init__(spec, DefaultLogsSpecs(), shutdown_timeout=_STOP_SECONDS)
        self._generation = 0
        self._ends: Sequence[End] = ()
        self._job, self._run, self._lease, self._restarts = job, run, lease, restarts
        self._timeout = timeout

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self._generation = self._lease.next_generation()
        world = len(worker_group.workers) * (worker_group.group_world_size or 1)
        description = describe(
            self._job,
            generation=self._generation,
            world=world,
            run=self._run,
            fence=self._lease.fence,
            timeout=self._timeout,
        )
        threads = max(1, (os.cpu_count() or 1) // len(worker_group.workers))
        worker_group.spec.args = (*COMMAND, json.dumps({**description, "threads": threads}))
        started: dict[int, Any] = super()._start_workers(worker_group)
        return started

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result: RunResult = super()._monitor_workers(worker_group)
        self._ends = _ends(result)
        return result

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        self._stop_workers(worker_group)
        self._restarts.after(self._generation, ends=self._ends)
        super()._restart_workers(worker_group)


def _ends(result: RunResult) -> list[End]:
    failures = sorted(result.failures.items())
    return [End(rank=rank, pid=failure.pid, exit_code=failure.exitcode) for rank, failure in failures]


def _silence_torch() -> None:
    """Keep the lines of torch's agent from the display: what there is to say is in events and in the error raised."""
    # Its loggers have levels of their own; what all of them pass their lines up to is this one.
    logger = logging.getLogger("torch.distributed.elastic")
    logger.propagate = False
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
