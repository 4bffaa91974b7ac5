"""The rules that tie the keys of `kubernetes` together. Called by `rules`. Pure.

They hold what a cluster's own admission lets through: the training operator's webhook accepts bounds that exclude each
other, and the pods then never start, and nobody says why.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from shardline.components.common.config.kubernetes_schema import Kubernetes, Toleration, Workers
from shardline.components.common.kubernetes.quantities import amount

#: What each pod is told of itself.
OWN_VARIABLES = ("POD_NAME", "POD_NAMESPACE", "POD_IP", "POD_UID", "NODE_NAME")
_SECRET = re.compile(r"(PASSWORD|SECRET|_TOKEN|^TOKEN|API_?KEY|ACCESS_KEY|PRIVATE_KEY)(_ID)?$", re.IGNORECASE)
_PASSWORD_IN_URL = re.compile(r"^[a-z0-9+.-]+://[^/@:]+:[^/@]+@", re.IGNORECASE)

Found = Iterator[tuple[str, str]]


def broken_kubernetes_rules(section: Kubernetes) -> Found:
    """What is wrong, as the path of a key and what would be right."""
    yield from _workers(section.workers)
    if section.queue is not None and section.workers.elastic:
        key = "min" if section.workers.min is not None else "max"
        yield (
            f"kubernetes.workers.{key}",
            "must not be set beside kubernetes.queue: Kueue admits a fixed number of pods",
        )
    least, gang = section.workers.least, section.scheduler.min_available
    if gang is not None and gang > section.workers.replicas:
        yield (
            "kubernetes.scheduler.min_available",
            f"must not be above kubernetes.workers.replicas ({section.workers.replicas}): so many pods are never there",
        )
    elif gang is not None and gang < least:
        yield "kubernetes.scheduler.min_available", f"must be at least the fewest workers that can train ({least})"
    yield from _variables(section)
    for index, toleration in enumerate(section.tolerations):
        yield from _toleration(f"kubernetes.tolerations.{index}", toleration)


def _workers(workers: Workers) -> Found:
    least, most = workers.least, workers.most
    if least > most:
        key = "min" if workers.min is not None else "max"
        yield f"kubernetes.workers.{key}", f"leaves no number: min is {least}, max is {most} (replicas where not set)"
    elif not least <= workers.replicas <= most:
        yield "kubernetes.workers.replicas", f"must be from kubernetes.workers.min ({least}) to max ({most})"
    if amount(workers.shm) >= amount(workers.memory):
        yield (
            "kubernetes.workers.shm",
            f"must be below kubernetes.workers.memory ({workers.memory}), of which it is part",
        )
    if isinstance(workers.processes, int) and workers.processes < 1:
        yield "kubernetes.workers.processes", "must be at least 1, or auto"
    elif workers.gpu.count and workers.processes_a_pod != workers.gpu.count:
        yield (
            "kubernetes.workers.processes",
            f"must be the number of devices of a pod, kubernetes.workers.gpu ({workers.gpu.count}), or auto",
        )


def _variables(section: Kubernetes) -> Found:
    taken: dict[str, str] = {}
    for secret, keys in section.secrets.items():
        for key in keys:
            if key in taken:
                yield "kubernetes.secrets", f"{secret} sets {key} a second time (first by {taken[key]})"
            taken.setdefault(key, f"the secret {secret}")
    for name, value in section.env.items():
        # The path is that of the whole mapping: messages show the value of a single key.
        if name in taken:
            yield "kubernetes.env", f"{name} is set by {taken[name]} already"
        elif _SECRET.search(name) or _PASSWORD_IN_URL.match(value):
            yield "kubernetes.env", f"{name} looks like a secret, and would stand in manifests: use kubernetes.secrets"
    for name in (*section.env, *taken):
        if name in OWN_VARIABLES:
            yield "kubernetes.env", f"{name} is set by shardline, to what the pod is"


def _toleration(path: str, toleration: Toleration) -> Found:
    if toleration.operator == "Exists" and toleration.value is not None:
        yield f"{path}.value", "must not be set with operator: Exists"
    if toleration.operator == "Equal" and toleration.key is None:
        yield f"{path}.key", "is needed with operator: Equal; operator: Exists without a key tolerates every taint"
    if toleration.seconds is not None and toleration.effect != "NoExecute":
        yield f"{path}.seconds", "is for effect: NoExecute"
