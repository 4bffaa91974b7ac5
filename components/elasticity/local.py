"""The agent for a run on this machine. Called by the command line and the pipeline's tasks."""

from __future__ import annotations

import socket

from shardline.components.common.config import RunConfig
from shardline.components.common.events import EventLog
from shardline.components.common.machine import processes
from shardline.components.common.owner import Lease
from shardline.components.common.storage import Storage
from shardline.components.common.workers import Job
from shardline.components.elasticity.budget.verdict import Limits
from shardline.components.elasticity.group.agent import GroupAgent
from shardline.components.elasticity.group.board import MemoryBoard
from shardline.components.elasticity.group.forming import Size
from shardline.components.elasticity.group.state import Member
from shardline.components.elasticity.logs import Logs
from shardline.components.elasticity.processes import Processes
from shardline.components.elasticity.snapshots.keeper import Keeper

_HOST = "127.0.0.1"


class LocalAgent:
    """An `Agent` of `processes` workers on this machine: a group of one.

    Args:
        limits: of what may be lost.
        timeout: seconds of silence after which a worker counts a peer as lost.
        grace: seconds that workers which can have to save when this process is asked to end.
    """

    def __init__(self, *, processes: int, limits: Limits, timeout: int, grace: int) -> None:
        self.processes = processes
        self._limits = limits
        self._timeout = timeout
        self._grace = grace

    def run(self, job: Job, *, run: Storage, lease: Lease, events: EventLog) -> None:
        with Keeper(run, host=None) as keeper, Logs(run) as logs:
            agent = GroupAgent(
                MemoryBoard(),
                member=Member(id=_HOST, host=_HOST, processes=self.processes, node=socket.gethostname()),
                processes=Processes(module=job.module, url=run.url, memory=keeper.root, logs=logs),
                keeper=keeper,
                size=Size(least=1, most=1, settle=0.0),
                fits=lambda world: True,
                limits=self._limits,
                timeout=self._timeout,
                grace=self._grace,
            )
            with agent.alone():
                agent.run(job, run=run, lease=lease, events=events)


def local_agent(config: RunConfig) -> LocalAgent:
    """As the config asks for."""
    return LocalAgent(
        processes=processes(config),
        limits=Limits.of(config),
        timeout=config.elastic.timeout,
        grace=config.elastic.grace,
    )
