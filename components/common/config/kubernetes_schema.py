"""The run config's keys for a Kubernetes cluster. All are free: where a run computes is no part of what it is.

Part of `schema`; docstrings below the keys are the JSON schema's descriptions. A key that Kubernetes knows has the form
that Kubernetes gives it; secrets are named here and never written.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator

from shardline.components.common.config.fields import Section, free
from shardline.components.common.kubernetes import quantities


def _quantity(value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if isinstance(value, str):
        quantities.amount(value)
    return value


def _form(holds: Callable[[str], bool], rule: str) -> AfterValidator:
    def check(value: str) -> str:
        if not holds(value):
            raise ValueError(f"should be {rule}")
        return value

    return AfterValidator(check)


def _is_variable(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is not None


def _keys(value: object) -> object:
    return [] if value == "all" else value


Quantity = Annotated[str, BeforeValidator(_quantity, json_schema_input_type=str | int | float)]
Label = Annotated[
    str, _form(quantities.is_label, "a name of at most 63 lower-case letters, digits and hyphens, no hyphen at an end")
]
Name = Annotated[
    str, _form(quantities.is_subdomain, "the name of an object: lower-case letters, digits, hyphens and dots")
]
Key = Annotated[str, _form(quantities.is_qualified, "a key such as nvidia.com/gpu: PREFIX/NAME or NAME")]
LabelValue = Annotated[str, _form(quantities.is_label_value, "a label's value: at most 63 letters, digits and -_.")]
Variable = Annotated[str, _form(_is_variable, "the name of an environment variable")]
SecretKeys = Annotated[list[Variable], BeforeValidator(_keys, json_schema_input_type=list[Variable] | Literal["all"])]


class Gpu(Section):
    count: int = free(0, ge=0, le=64)
    """Devices of a worker pod."""
    resource: Key = free("nvidia.com/gpu")
    """What the cluster calls them: a MIG slice is nvidia.com/mig-1g.10gb or the like."""


def _gpu(value: object) -> object:
    return {"count": value} if isinstance(value, int) and not isinstance(value, bool) else value


class Workers(Section):
    """The pods that train. Requests are limits, so that no neighbour slows a step that all ranks wait for."""

    replicas: int = free(1, ge=1, le=100_000)
    """How many pods there are at the start."""
    min: int | None = free(None, ge=1, le=100_000)
    max: int | None = free(None, ge=1, le=100_000)
    """With either the number is elastic, between them; one that is not set is `replicas`."""
    cpu: Quantity = free("4")
    memory: Quantity = free("16Gi")
    gpu: Annotated[Gpu, BeforeValidator(_gpu, json_schema_input_type=int | Gpu)] = free(Gpu())
    """A number of nvidia.com/gpu, or count and resource."""
    shm: Quantity = free("1Gi")
    """The size of /dev/shm, which is part of `memory`."""
    disk: Quantity | None = free(None)
    """Room of the node's disk that a pod is promised and limited to; null neither promises nor limits."""
    processes: int | Literal["auto"] = free("auto")
    """Training processes in a pod; `auto` is one a device, or one in a pod without."""

    @property
    def elastic(self) -> bool:
        return self.min is not None or self.max is not None

    @property
    def least(self) -> int:
        return self.replicas if self.min is None else self.min

    @property
    def most(self) -> int:
        return self.replicas if self.max is None else self.max

    @property
    def processes_a_pod(self) -> int:
        return max(1, self.gpu.count) if self.processes == "auto" else self.processes


class ShardingPods(Section):
    parts: int = free(1, ge=1, le=10_000)
    """Pods that share the work of sharding; their parts are then merged."""
    cpu: Quantity = free("2")
    memory: Quantity = free("4Gi")


class Scheduler(Section):
    name: Name | None = free(None)
    """The scheduler of the worker pods, such as volcano or scheduler-plugins-scheduler; null is the cluster's own."""
    min_available: int | None = free(None, ge=1, le=100_000)
    """Pods that a gang scheduler starts together or not at all; `workers.min` unless set."""


class Toleration(Section):
    key: Key | None = free(None)
    operator: Literal["Equal", "Exists"] = free("Equal")
    value: LabelValue | None = free(None)
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = free(None)
    seconds: int | None = free(None, ge=0, le=1 << 31)
    """How long a pod stays on a node with a NoExecute taint; null is for ever."""


class Patch(Section):
    kind: str = free(min_length=1)
    """The kind of the objects that it changes, such as PyTorchJob."""
    name: Name | None = free(None)
    """Of one of them; null changes all of the kind."""
    patch: dict[str, Any] = free(min_length=1)
    """A strategic merge patch: what stands here is put in, null takes out, and containers, variables, volumes and
    mounts are found by their names."""


class Kubernetes(Section):
    image: str | None = free(None, min_length=1)
    """The container image of all steps: `shardline compile` and `shardline render` need it."""
    light_image: str | None = free(None, min_length=1)
    """An image without torch for the steps that need none, sharding and the report; `image` unless set."""
    namespace: Label = free("shardline")
    service_account: Name | None = free(None)
    """Whose rights all pods have, such as one with access to the storage; unless set, the workers have shardline-worker
    and the other steps shardline-step."""
    image_pull_secrets: list[Name] = free([])
    secrets: dict[Name, SecretKeys] = free({})
    """Secrets of the namespace, each with the keys that become environment variables of their names; none, or `all`, is
    every key."""
    env: dict[Variable, str] = free({})
    """Plain environment variables, such as HTTPS_PROXY or AWS_ENDPOINT_URL. What is secret belongs into `secrets`."""
    node_selector: dict[Key, LabelValue] = free({})
    tolerations: list[Toleration] = free([])
    priority_class: Name | None = free(None)
    user: int = free(10001, ge=1, le=1 << 31)
    """The user and group id that all pods run as; never root."""
    workers: Workers = free(Workers())
    sharding: ShardingPods = free(ShardingPods())
    grace: int = free(120, ge=1, le=24 * 3600)
    """Seconds that a pod has to end in order."""
    ttl: int | None = free(24 * 3600, ge=0, le=1 << 31)
    """Seconds that a finished job is kept for; null keeps it. The run itself is in the storage."""
    suspend: bool = free(False)
    """Whether the training job is created suspended, to be started by somebody else."""
    queue: Label | None = free(None)
    """A LocalQueue of Kueue; the number of workers is then fixed."""
    scheduler: Scheduler = free(Scheduler())
    pod_monitor: dict[Key, LabelValue] | None = free(None)
    """The labels of a PodMonitor for the Prometheus Operator, such as those by which the cluster's Prometheus picks its
    own ({release: prometheus}), or {}; null makes none."""
    patch: list[Patch] = free([])
    """Changes to the finished objects, for what no key here covers."""

    @property
    def light(self) -> str | None:
        return self.light_image or self.image
