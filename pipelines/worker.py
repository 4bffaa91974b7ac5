"""`shardline worker`: an agent with what it needs, from the config and the machine or pod that it is on."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

from shardline.components.common.config import Loaded, RunConfig
from shardline.components.common.errors import EXIT_ENVIRONMENT, FINAL_EXIT_CODES, EnvironmentLacking, from_record
from shardline.components.common.kubernetes.client import Client
from shardline.components.common.machine import pod_memory, processes
from shardline.components.common.owner import FENCE_VARIABLE, hold
from shardline.components.common.runfolder import run_storage
from shardline.components.common.storage import Storage
from shardline.components.common.workers import module_of
from shardline.components.elasticity.budget.nodes import BadNodes
from shardline.components.elasticity.budget.verdict import Limits
from shardline.components.elasticity.group.agent import GroupAgent
from shardline.components.elasticity.group.board import Board, StorageBoard
from shardline.components.elasticity.group.forming import Size
from shardline.components.elasticity.group.kube_board import KubernetesBoard
from shardline.components.elasticity.group.kube_records import group_of
from shardline.components.elasticity.group.picture import Picture
from shardline.components.elasticity.group.standby import StandbyBoard
from shardline.components.elasticity.group.state import Member
from shardline.components.elasticity.logs import Logs
from shardline.components.elasticity.pod import this_pod
from shardline.components.elasticity.processes import Processes
from shardline.components.elasticity.snapshots.keeper import Keeper
from shardline.components.monitoring.exposition import Standing
from shardline.components.monitoring.server import serving
from shardline.components.planning.choose import fits
from shardline.components.sharding.step import find_dataset
from shardline.components.training import step

#: Seconds for which an API server that does not answer is asked again: an agent has its workers to look after.
_API_PATIENCE = 3.0
#: To connect to it, and for an answer.
_API_TIMEOUT = 2.0, 3.0
#: How long a round lasts for agents that may yet come, in beats of the board.
_SETTLE_BEATS = 8
#: An agent whose loop does not come round for so long hangs; beside its loop a leader does the rest of the train step,
#: and waits for storage that fails.
_HANGS_SECONDS = 600.0


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where an agent is.

    Attributes:
        least, most: how many agents train together.
        processes: the workers that this one starts; host: where the others reach them; node: the machine.
        brought_back: whether it is started again after an exit code that asks for it, as a pod is.
    """

    board: Board
    id: str
    host: str
    node: str
    processes: int
    least: int
    most: int
    brought_back: bool


def join(loaded: Loaded, place: Place) -> None:
    """Take part in the training of `loaded`'s run until it has ended.

    Raises:
        ShardlineError: the error that ended the job, the same on every agent.
        Stopped: a signal to this one.
        NodeSetAside: its node is one that runs do without, and the others are enough.
    """
    config, board = loaded.config, place.board
    run = run_storage(config)

    def lead(agent: GroupAgent, fence: int | None) -> None:
        with _owning(config, evicting=fence):
            step.run(config, agent=agent, sources=loaded.sources)

    with Keeper(run, host=place.host) as keeper, Logs(run) as logs:
        agent = GroupAgent(
            board,
            member=Member(
                id=place.id, host=place.host, processes=place.processes, node=place.node, address=keeper.address
            ),
            processes=Processes(module=module_of(step.ENTRY), url=run.url, memory=keeper.root, logs=logs),
            keeper=keeper,
            size=Size(least=place.least, most=place.most, settle=_SETTLE_BEATS * board.beat_seconds),
            fits=lambda world: fits(config, world=world, vocab=find_dataset(config).manifest.vocab),
            limits=Limits.of(config),
            timeout=config.elastic.timeout,
            grace=config.elastic.grace,
            nodes=BadNodes(Storage(config.storage)),
        )
        with serving(
            config.run,
            port=config.monitoring.worker_port,
            standing=lambda: _standing(agent.picture, config, place),
            patience=max(_HANGS_SECONDS, 2 * config.elastic.timeout),
        ):
            result = agent.attend(lead)
    if result["exit_code"]:
        error = from_record(result)
        # All agents agree that it is over.
        if place.brought_back and error.exit_code not in FINAL_EXIT_CODES:
            error.exit_code = EXIT_ENVIRONMENT
        raise error


def _standing(picture: Picture, config: RunConfig, place: Place) -> Standing:
    """What is shown of an agent."""
    state, used_and_limit = picture.state, pod_memory()
    running = state is not None and state.phase == "running"
    return Standing(
        role=picture.role,
        round=state.round if state else 0,
        generation=state.generation if state and running else 0,
        world=state.world if state and running else 0,
        least=place.least * place.processes,
        # Those that another leader made are its own to tell.
        restarts=picture.restarts if picture.role == "leader" else None,
        most_restarts=config.elastic.max_restarts,
        silent=time.monotonic() - picture.looked,
        ready=picture.reads and state is not None,
        memory_used=used_and_limit[0],
        memory_limit=used_and_limit[1],
    )


def on_machine(
    config: RunConfig,
    *,
    least: int,
    most: int,
    count: int | None,
    group: str,
    host: str | None,
    node: str | None = None,
) -> Place:
    """The place of an agent on a machine; the agents meet in the run folder.

    Args:
        count: workers; as the config says unless given.
        group: a name for this start of the job.
        host, node: found out unless given.
    """
    return Place(
        board=_in_run_folder(config, group=group, most=most),
        id=f"{socket.gethostname()}-{os.getpid()}",
        host=host or _address(),
        node=node or socket.gethostname(),
        processes=count or processes(config),
        least=least,
        most=most,
        brought_back=False,
    )


def _in_run_folder(config: RunConfig, *, group: str, most: int) -> StorageBoard:
    return StorageBoard(run_storage(config).at(f"groups/{group}"), most=most)


def in_pod(config: RunConfig, *, node: str | None = None) -> Place:
    """The place of an agent in a pod of the run's job; the agents meet in the namespace, or while the API server is
    away in the run folder.

    Args:
        node: that the pod is on; NODE_NAME unless given.

    Raises:
        EnvironmentLacking: the pod does not say who it is, or may not do what an agent does.
    """
    client = Client.connect(patience=_API_PATIENCE, timeout=_API_TIMEOUT)
    pod = this_pod(client)
    owner = pod.controller or pod.reference
    workers, group = config.kubernetes.workers, group_of(owner)
    agent = f"{pod.name.removeprefix(owner['name'] + '-')}-{pod.uid[:8]}"
    return Place(
        board=StandbyBoard(
            KubernetesBoard(client, group=group, pod=pod, most=workers.most),
            _in_run_folder(config, group=group, most=workers.most),
            member=agent,
        ),
        id=agent,
        host=os.environ.get("POD_IP") or _address(),
        node=node or os.environ.get("NODE_NAME", ""),
        processes=workers.processes_a_pod,
        least=workers.least,
        most=workers.most,
        brought_back=True,
    )


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
