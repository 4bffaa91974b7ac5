"""The pods of a run's steps, as its config has them. Pure. Called by the builders of jobs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from shardline.components.common import config as configs
from shardline.components.common.config import RunConfig
from shardline.components.common.errors import UserError
from shardline.components.common.kubernetes import access
from shardline.components.common.kubernetes.names import STORAGE_ANNOTATION, Names, labels, selector
from shardline.components.common.kubernetes.objects import (
    Container,
    Manifest,
    Meta,
    Pod,
    Probe,
    Resources,
    Volume,
    config_volume,
    disk_volume,
    memory_volume,
)
from shardline.components.common.series import PORT_NAME

CONFIG_FOLDER = "/etc/shardline"
CONFIG_PATH = f"{CONFIG_FOLDER}/config.yaml"
WORKER = "worker"
#: The container's name that the training operator asks for.
WORKER_CONTAINER = "pytorch"
#: In bytes: what the API server takes of a ConfigMap, with room for the rest of the object.
_LARGEST_CONFIG = (1 << 20) - (1 << 12)
#: Of an agent, whatever its workers are at. It may take ten minutes to begin (an image whose files are read for the
#: first time, an API server that is away), and five without an answer: workers that compile leave it little of the CPU.
_PROBES = {
    "startup": Probe("/healthz", PORT_NAME, period=5, failures=120),
    "liveness": Probe("/healthz", PORT_NAME, period=30, failures=10),
    "readiness": Probe("/readyz", PORT_NAME, period=10, failures=3),
}
#: The report reads what a run recorded; it takes no more for a larger model.
_REPORT = Resources("500m", "1Gi")


def config_map(config: RunConfig) -> Manifest:
    """The config for all pods of the run. Its name is that of its content: a job keeps the one that it began with.

    Raises:
        UserError: it is larger than an object may be.
    """
    text = configs.dump(config)
    if len(text.encode()) > _LARGEST_CONFIG:
        raise UserError(
            f"takes {len(text.encode()):,} bytes; a ConfigMap holds {_LARGEST_CONFIG:,}",
            where="the config",
            hint="name many corpus files by a folder or a glob instead of a list",
        )
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": meta(config, _config_name(config), "config").manifest(),
        "immutable": True,
        "data": {"config.yaml": text},
    }


def meta(config: RunConfig, name: str, component: str, *, extra_labels: Mapping[str, str] | None = None) -> Meta:
    """The metadata of an object of the run."""
    return Meta(
        name=name,
        namespace=config.kubernetes.namespace,
        labels={**labels(config.run, component), **(extra_labels or {})},
        annotations={STORAGE_ANNOTATION: config.storage},
    )


def queue_labels(config: RunConfig) -> dict[str, str]:
    """The label of a job that Kueue is to admit."""
    queue = config.kubernetes.queue
    return {} if queue is None else {"kueue.x-k8s.io/queue-name": queue}


def worker_pod(config: RunConfig, *, container: str = WORKER_CONTAINER, restart: str | None = "Never") -> Pod:
    """A pod that trains: the run's agent, which starts the processes and meets the agents of the other pods.

    Args:
        container: what its controller wants its container to be called.
        restart: its restartPolicy; None where the controller sets it.
    """
    return _pod(
        config,
        WORKER,
        command=("shardline", WORKER, CONFIG_PATH),
        container=container,
        resources=_worker_resources(config),
        shared_memory=config.kubernetes.workers.shm,
        service_account=access.worker_account(config),
        restart=restart,
        api=True,
        apart=True,
        port=config.monitoring.worker_port,
    )


def step_pod(config: RunConfig, step: str, *, command: tuple[str, ...], fields: Mapping[str, str] | None = None) -> Pod:
    """The pod of a step that needs nobody else: `shard`, `merge`, `evaluate`, `report` or `recurring`.

    Args:
        fields: as `Container` has them.
    """
    heavy = step in ("evaluate", "recurring")
    sharding = config.kubernetes.sharding
    light = _REPORT if step == "report" else Resources(sharding.cpu, sharding.memory)
    return _pod(
        config,
        step,
        command=command,
        container=step,
        resources=_worker_resources(config) if heavy else light,
        shared_memory=config.kubernetes.workers.shm if heavy else None,
        fields=fields,
        service_account=access.step_account(config),
    )


def _worker_resources(config: RunConfig) -> Resources:
    workers = config.kubernetes.workers
    return Resources(workers.cpu, workers.memory, {workers.gpu.resource: workers.gpu.count}, workers.disk)


def _pod(
    config: RunConfig,
    component: str,
    *,
    command: tuple[str, ...],
    container: str,
    resources: Resources,
    shared_memory: str | None,
    service_account: str,
    fields: Mapping[str, str] | None = None,
    restart: str | None = "Never",
    api: bool = False,
    apart: bool = False,
    port: int = 0,
) -> Pod:
    section = config.kubernetes
    volumes: list[Volume] = [
        config_volume("config", CONFIG_FOLDER, config_map=_config_name(config)),
        disk_volume("tmp", "/tmp", size=resources.disk),
    ]
    if shared_memory is not None:
        volumes.append(memory_volume("shm", "/dev/shm", size=shared_memory))
    image = section.image if component in (WORKER, "evaluate", "recurring") else section.light
    if image is None:
        raise ValueError("kubernetes.image is not set")
    return Pod(
        container=Container(
            name=container,
            image=image,
            command=command,
            resources=resources,
            volumes=tuple(volumes),
            fields=fields or {},
            # Each process has its own threads already: one a process, unless the config says otherwise.
            env={"HOME": "/tmp", "OMP_NUM_THREADS": "1", **section.env},
            secrets={name: tuple(keys) for name, keys in section.secrets.items()},
            ports={PORT_NAME: port} if port else {},
            probes=_PROBES if port else {},
        ),
        labels=labels(config.run, component),
        service_account=service_account,
        user=section.user,
        grace=section.grace,
        api=api,
        restart=restart,
        pull_secrets=tuple(section.image_pull_secrets),
        node_selector=section.node_selector,
        tolerations=tuple(_toleration(each.model_dump(exclude_none=True)) for each in section.tolerations),
        priority_class=section.priority_class,
        scheduler=section.scheduler.name if component == WORKER else None,
        apart=selector(config.run, component) if apart else {},
    )


def _toleration(keys: Mapping[str, Any]) -> Manifest:
    return {"tolerationSeconds" if name == "seconds" else name: value for name, value in keys.items()}


def _config_name(config: RunConfig) -> str:
    digest = hashlib.blake2b(configs.dump(config).encode(), digest_size=5).hexdigest()
    return Names(config.run).config(digest)
