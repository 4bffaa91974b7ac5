"""`shardline worker`: an agent with what it needs, from the config and the machine or pod that it is on."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

from shardline.components.common.config import Loaded, RunConfig
from shardline.components.common.errors import EnvironmentLacking, UserError, from_record
from shardline.components.common.machine import processes
from shardline.components.common.owner import FENCE_VARIABLE, hold
from shardline.components.common.runfolder import run_storage
from shardline.components.elasticity.group.agent import GroupAgent
from shardline.components.elasticity.group.board import Board, StorageBoard
from shardline.components.elasticity.group.forming import Size
from shardline.components.elasticity.group.state import Member
from shardline.components.planning.choose import fits
from shardline.components.sharding.step import find_dataset
from shardline.components.training import step

#: How long a round lasts for agents that may yet come, in beats of the board.
_SETTLE_BEATS = 8


def join(loaded: Loaded, *, least: int, most: int, count: int | None, group: str | None, host: str | None) -> None:
    """Take part in the training of `loaded`'s run until it has ended.

    Args:
        least, most: how many agents train together.
        count: the workers that this agent starts; as the config says unless given.
        group: the name of this start of the job.
        host: where the others reach this machine; found out unless given.

    Raises:
        ShardlineError: the error that ended the job, the same on every agent.
        Stopped: a signal to this one.
    """
    config = loaded.config
    board, identity = _board(config, group=group)
    agent = GroupAgent(
        board,
        member=Member(id=identity, host=host or _address(), processes=count or processes(config)),
        size=Size(least=least, most=most, settle=_SETTLE_BEATS * board.beat_seconds),
        fits=lambda world: fits(config, world=world, vocab=find_dataset(config).manifest.vocab),
        max_restarts=config.elastic.max_restarts,
        timeout=config.elastic.timeout,
    )

    def lead(agent: GroupAgent, fence: int | None) -> None:
        with _owning(config, evicting=fence):
            step.run(config, agent=agent, sources=loaded.sources)

    result = agent.attend(lead)
    if result["exit_code"]:
        raise from_record(result)


def _board(config: RunConfig, *, group: str | None) -> tuple[Board, str]:
    """Where the agents meet, and what this one is called there."""
    if group is None:
        raise UserError(
            "is needed: a name for this start of the job, the same on every machine and another one next time",
            where="--group",
            hint="for example the number of the job in your scheduler",
        )
    return StorageBoard(run_storage(config).at(f"groups/{group}")), f"{socket.gethostname()}-{os.getpid()}"


@contextlib.contextmanager
def _owning(config: RunConfig, *, evicting: int | None) -> Iterator[None]:
    """Hold the run's lease, and lend it to what this process does in the block."""
    with hold(run_storage(config), evicting=evicting or None) as lease:
        os.environ[FENCE_VARIABLE] = str(lease.fence)
        try:
            yield
        finally:
            del os.environ[FENCE_VARIABLE]


def _address() -> str:
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError as error:
        raise EnvironmentLacking(
            f"this machine's name has no address: {error}", where="--host", hint="give the address that others reach"
        ) from error
