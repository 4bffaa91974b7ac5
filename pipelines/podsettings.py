"""What the pods of the pipeline's tasks ask of a cluster, and how a KFP task is told.

Called when the pipeline is put together. Everything is fixed when it is compiled, as a pipeline parameter has no value
then. Secrets are named and never read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kfp import kubernetes

from shardline.components.common.config import RunConfig
from shardline.components.common.config.kubernetes_schema import Toleration
from shardline.components.common.errors import UserError

#: The steps whose own pods need no torch: in a cluster `train` has a job do it, and follows that.
_LIGHT = ("shard", "plan", "train", "report")
_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")


@dataclass(frozen=True)
class Room:
    """What a pod asks for. Requests are limits: no quota refuses it, and no neighbour slows it."""

    cpu: str
    memory: str
    gpus: int = 0
    gpu_resource: str = "nvidia.com/gpu"
    shm: str | None = None
    """The size of /dev/shm, part of `memory`; None leaves the 64 MiB of the container runtime."""


_ROOMS: Mapping[str, Room] = {
    "shard": Room(cpu="2", memory="4Gi"),
    "plan": Room(cpu="1", memory="2Gi"),
    # It follows the job that trains.
    "train": Room(cpu="500m", memory="1Gi"),
    "evaluate": Room(cpu="4", memory="16Gi", shm="1Gi"),
    "report": Room(cpu="1", memory="2Gi"),
}


@dataclass(frozen=True)
class PodSettings:
    """What all pods of a pipeline have, and the room of each step's pod.

    Args:
        image: the container image of each task.
        light_image: that of the tasks which need no torch; `image` unless given.
        user: the numeric user and group of each container: restricted namespaces take no image's word for it.
        image_pull_secrets: names of secrets of the namespace.
        secrets: names of secrets, each with the keys that become environment variables of the same name.
        env: plain environment variables.
        rooms: what each step's pod asks for.

    Raises:
        UserError: the name of a secret is none.
    """

    image: str
    light_image: str | None = None
    user: int = 10001
    image_pull_secrets: tuple[str, ...] = ()
    secrets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    rooms: Mapping[str, Room] = field(default_factory=lambda: _ROOMS)

    def __post_init__(self) -> None:
        for name in (*self.image_pull_secrets, *self.secrets):
            if not (isinstance(name, str) and _NAME.fullmatch(name)):
                raise UserError(
                    f"{str(name)!r} is not the name of a secret",
                    where="kubernetes",
                    hint="write the name itself: it is fixed when the pipeline is compiled, and no pipeline parameter",
                )


def pod_settings(config: RunConfig) -> PodSettings:
    """What `config` asks for its pods; `kubernetes.image` is set.

    Raises:
        UserError: a secret is to be taken as a whole, which a KFP task cannot.
    """
    wanted = config.kubernetes
    if wanted.image is None:
        raise RuntimeError("kubernetes.image is not set")
    workers, sharding = wanted.workers, wanted.sharding
    computing = Room(workers.cpu, workers.memory, workers.gpu.count, workers.gpu.resource, workers.shm)
    rooms = {**_ROOMS, "shard": Room(sharding.cpu, sharding.memory), "evaluate": computing}
    return PodSettings(
        image=wanted.image,
        light_image=wanted.light_image,
        user=wanted.user,
        image_pull_secrets=tuple(wanted.image_pull_secrets),
        secrets={name: _keys(name, keys) for name, keys in wanted.secrets.items()},
        env=wanted.env,
        node_selector=wanted.node_selector,
        tolerations=tuple(wanted.tolerations),
        rooms=rooms,
    )


def _keys(name: str, keys: list[str] | Literal["all"]) -> tuple[str, ...]:
    if keys == "all":
        raise UserError(
            "is 'all', and a task of a Kubeflow pipeline takes no secret as a whole",
            where=f"kubernetes.secrets.{name}",
            hint="list the keys that become environment variables",
        )
    return tuple(keys)


def apply(settings: PodSettings, *, task: Any, step: str) -> None:
    """Make `task`, which does the step `step`, run in a pod with these settings."""
    image = (settings.light_image if step in _LIGHT else None) or settings.image
    task.set_container_image(image)
    _ask_for_room(task, settings.rooms[step])
    # The group too: a volume or an image may be readable for it alone.
    kubernetes.set_security_context(task, run_as_user=settings.user, run_as_group=settings.user, run_as_non_root=True)
    if settings.image_pull_secrets:
        kubernetes.set_image_pull_secrets(task, list(settings.image_pull_secrets))
    for name, keys in settings.secrets.items():
        kubernetes.use_secret_as_env(task, name, {key: key for key in keys})
    for name, value in settings.env.items():
        task.set_env_variable(name, value)
    for label, value in settings.node_selector.items():
        kubernetes.add_node_selector(task, label, value)
    for each in settings.tolerations:
        kubernetes.add_toleration(
            task,
            key=each.key,
            operator=each.operator,
            value=each.value,
            effect=each.effect,
            toleration_seconds=each.seconds,
        )


def _ask_for_room(task: Any, room: Room) -> None:
    task.set_cpu_request(room.cpu).set_cpu_limit(room.cpu)
    task.set_memory_request(room.memory).set_memory_limit(room.memory)
    if room.gpus:
        task.set_accelerator_type(room.gpu_resource).set_accelerator_limit(room.gpus)
    if room.shm:
        kubernetes.empty_dir_mount(task, volume_name="shm", mount_path="/dev/shm", medium="Memory", size_limit=room.shm)
