"""What holds for each Kubernetes object of ours, and a config that most keys of `kubernetes` are set in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shardline.components.common.config import Loaded, parse

BASE = """\
version: 1
run: try
storage: s3://bucket/root
corpus: s3://bucket/texts
training: {steps: 20, global_batch: 8, microbatch: 2, sequence: 64}
kubernetes:
  image: registry.example/shardline:1
"""

FULL = (
    BASE
    + """\
  light_image: registry.example/shardline-light:1
  namespace: team
  image_pull_secrets: [registry, mirror]
  secrets: {s3: [AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY], tracking: all}
  env: {HTTPS_PROXY: "http://proxy.example:3128", OMP_NUM_THREADS: "2"}
  node_selector: {pool: gpu}
  tolerations:
    - {key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}
    - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, seconds: 30}
  priority_class: shardline-training
  workers:
    {replicas: 3, min: 2, max: 4, cpu: 8, memory: 64Gi, gpu: {count: 2, resource: nvidia.com/mig-1g.10gb}, disk: 20Gi}
  sharding: {parts: 3, cpu: 500m, memory: 1Gi}
  scheduler: {name: volcano}
  suspend: true
  patch:
    - kind: PyTorchJob
      patch: {metadata: {annotations: {team: research}}}
    - kind: Job
      name: try-report
      patch: {spec: {ttlSecondsAfterFinished: null}}
"""
)


def loaded(*overrides: str, text: str = BASE) -> Loaded:
    return parse(text, source="config.yaml", overrides=overrides, ignore_environment=True)


def pods_of(tree: Any) -> Iterator[dict[str, Any]]:
    """Every specification of a pod in `tree`, however deep."""
    if isinstance(tree, dict):
        if isinstance(tree.get("containers"), list):
            yield tree
        for value in tree.values():
            yield from pods_of(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from pods_of(value)


def containers_of(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """All containers of a pod: also those that run before it or are put in later."""
    return [each for key in ("initContainers", "containers", "ephemeralContainers") for each in pod.get(key, [])]


def violations(pod: dict[str, Any]) -> list[str]:
    """What the restricted profile of the Pod Security Standards refuses, and what a quota asks of each container."""
    found = [key for key in ("hostNetwork", "hostPID", "hostIPC") if pod.get(key)]
    allowed = {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
    found += [f"volume {each['name']}" for each in pod.get("volumes", []) if not (each.keys() - {"name"}) <= allowed]
    whole = pod.get("securityContext", {})
    for container in containers_of(pod):
        own, name = container.get("securityContext", {}), container["name"]
        context = {**whole, **own}
        wrong = {
            "runAsNonRoot": context.get("runAsNonRoot") is not True,
            "runAsUser": not context.get("runAsUser"),
            "seccompProfile": context.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"),
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is not False,
            "capabilities": own.get("capabilities") not in ({"drop": ["ALL"]},),
            "privileged": bool(own.get("privileged")),
            "hostPort": any("hostPort" in port for port in container.get("ports", [])),
            "readOnlyRootFilesystem": own.get("readOnlyRootFilesystem") is not True,
        }
        found += [f"{name}: {rule}" for rule, broken in wrong.items() if broken]
        for side in ("requests", "limits"):
            amounts = container.get("resources", {}).get(side, {})
            found += [f"{name}: no {side}.{key}" for key in ("cpu", "memory") if key not in amounts]
    return found
