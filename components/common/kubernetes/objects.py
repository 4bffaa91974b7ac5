"""The parts that every object of ours is made of: metadata, containers, pods. Pure; plain mappings come out.

Called by the builders beside this module, and by nothing else. A pod of ours always meets the restricted profile of
Kubernetes' Pod Security Standards, and each container states what it takes: there is no way to build another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Manifest = dict[str, Any]

#: Istio's proxy would stand between the workers and outlive them.
_POD_ANNOTATIONS = {"sidecar.istio.io/inject": "false"}
_DOWNWARD = {
    "POD_NAME": "metadata.name",
    "POD_NAMESPACE": "metadata.namespace",
    "POD_IP": "status.podIP",
    "POD_UID": "metadata.uid",
    "NODE_NAME": "spec.nodeName",
}


@dataclass(frozen=True)
class Meta:
    name: str
    namespace: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)

    def manifest(self) -> Manifest:
        found: Manifest = {"name": self.name}
        if self.namespace is not None:
            found["namespace"] = self.namespace
        return found | _filled(labels=dict(self.labels), annotations=dict(self.annotations))


@dataclass(frozen=True)
class Resources:
    """What a container asks for and may use at most: one and the same, so that the node never takes any of it back."""

    cpu: str
    memory: str
    devices: Mapping[str, int] = field(default_factory=dict)
    disk: str | None = None

    def amounts(self) -> dict[str, str]:
        found = {"cpu": self.cpu, "memory": self.memory}
        if self.disk is not None:
            found["ephemeral-storage"] = self.disk
        return found | {name: str(count) for name, count in self.devices.items() if count}

    def manifest(self) -> Manifest:
        return {"requests": self.amounts(), "limits": self.amounts()}


@dataclass(frozen=True)
class Volume:
    """A volume and where a container has it.

    Args:
        source: its source, as in the specification of a pod: {"emptyDir": {}} or the like.
    """

    name: str
    path: str
    source: Mapping[str, Any]
    read_only: bool = False

    def manifest(self) -> Manifest:
        return {"name": self.name, **self.source}

    def mount(self) -> Manifest:
        return {"name": self.name, "mountPath": self.path, **({"readOnly": True} if self.read_only else {})}


def memory_volume(name: str, path: str, *, size: str) -> Volume:
    """A folder in memory, counted to the container that fills it."""
    return Volume(name, path, {"emptyDir": {"medium": "Memory", "sizeLimit": size}})


def disk_volume(name: str, path: str, *, size: str | None) -> Volume:
    """A folder on the node's disk, gone with the pod."""
    return Volume(name, path, {"emptyDir": {} if size is None else {"sizeLimit": size}})


def config_volume(name: str, path: str, *, config_map: str) -> Volume:
    return Volume(name, path, {"configMap": {"name": config_map}}, read_only=True)


@dataclass(frozen=True)
class Probe:
    """What the kubelet asks a container over HTTP, and how long it bears with no good answer.

    Args:
        port: the name of one of the container's ports.
        period, timeout: seconds; failures: in a row.
    """

    path: str
    port: str
    period: int
    failures: int
    timeout: int = 10

    def manifest(self) -> Manifest:
        return {
            "httpGet": {"path": self.path, "port": self.port},
            "periodSeconds": self.period,
            "timeoutSeconds": self.timeout,
            "failureThreshold": self.failures,
        }


@dataclass(frozen=True)
class Container:
    """A container that is not root, gains no rights, and writes to its volumes alone.

    Args:
        ports: by their names.
        probes: by their kinds: startup, liveness, readiness.
        fields: variables that tell it of its pod, by the path of a field, beside those that every container has.
        env: plain variables.
        secrets: for each Secret the keys that become variables; none is all of them.
    """

    name: str
    image: str
    command: tuple[str, ...]
    resources: Resources
    volumes: tuple[Volume, ...] = ()
    fields: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ports: Mapping[str, int] = field(default_factory=dict)
    probes: Mapping[str, Probe] = field(default_factory=dict)

    def manifest(self) -> Manifest:
        whole = [{"secretRef": {"name": name}} for name, keys in self.secrets.items() if not keys]
        return {
            "name": self.name,
            "image": self.image,
            "command": list(self.command),
            # Of all that a process may write without saying where.
            "workingDir": "/tmp",
            "env": self._variables(),
            **_filled(envFrom=whole),
            **_filled(ports=[{"name": name, "containerPort": port} for name, port in self.ports.items()]),
            **{f"{kind}Probe": probe.manifest() for kind, probe in self.probes.items()},
            "resources": self.resources.manifest(),
            "volumeMounts": [volume.mount() for volume in self.volumes],
            # What a process printed last is then in the status of the pod, which outlives its log.
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
        }

    def _variables(self) -> list[Manifest]:
        fields = {**_DOWNWARD, **self.fields}
        found: list[Manifest] = [
            {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()
        ]
        found += [{"name": name, "value": value} for name, value in self.env.items()]
        for secret, keys in self.secrets.items():
            for key in keys:
                found.append({"name": key, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}})
        return found


@dataclass(frozen=True)
class Pod:
    """A pod of one container.

    Args:
        user: the user and group id of its processes, and the group of its volumes.
        api: whether it may talk to the API server, as its ServiceAccount.
        restart: its restartPolicy; None where a controller sets it.
        apart: labels of pods that should be on other nodes than this one.
    """

    container: Container
    labels: Mapping[str, str]
    service_account: str
    user: int
    grace: int
    api: bool = False
    restart: str | None = "Never"
    pull_secrets: tuple[str, ...] = ()
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    priority_class: str | None = None
    scheduler: str | None = None
    apart: Mapping[str, str] = field(default_factory=dict)

    def template(self) -> Manifest:
        """The template of such a pod, as a controller has it."""
        return {
            "metadata": {"labels": dict(self.labels), "annotations": dict(_POD_ANNOTATIONS)},
            "spec": {
                **_filled(restartPolicy=self.restart, schedulerName=self.scheduler),
                "serviceAccountName": self.service_account,
                "automountServiceAccountToken": self.api,
                "enableServiceLinks": False,
                "terminationGracePeriodSeconds": self.grace,
                "securityContext": {
                    "runAsNonRoot": True,
                    "runAsUser": self.user,
                    "runAsGroup": self.user,
                    "fsGroup": self.user,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
                **_filled(
                    imagePullSecrets=[{"name": name} for name in self.pull_secrets],
                    nodeSelector=dict(self.node_selector),
                    tolerations=[dict(toleration) for toleration in self.tolerations],
                    priorityClassName=self.priority_class,
                ),
                **(self._spread() if self.apart else {}),
                "containers": [self.container.manifest()],
                "volumes": [volume.manifest() for volume in self.container.volumes],
            },
        }

    def _spread(self) -> Manifest:
        """One pod a node as far as can be, so that a node takes one along; all in one zone, where they are close."""
        terms = {"labelSelector": {"matchLabels": dict(self.apart)}}
        return {
            "affinity": {
                "podAntiAffinity": _preferred(100, terms, "kubernetes.io/hostname"),
                "podAffinity": _preferred(50, terms, "topology.kubernetes.io/zone"),
            },
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway", **terms}
            ],
        }


def _preferred(weight: int, terms: Manifest, topology: str) -> Manifest:
    term = {"weight": weight, "podAffinityTerm": {**terms, "topologyKey": topology}}
    return {"preferredDuringSchedulingIgnoredDuringExecution": [term]}


def _filled(**values: Any) -> Manifest:
    """Those of `values` that say something."""
    return {name: value for name, value in values.items() if value not in (None, [], {})}
