"""What stands around the jobs: how many workers a drain may take, who may talk to them, what goes first. Pure.

Called by `render` (the budget, which is a run's own) and by `generate` (the rest, which is the namespace's or the
cluster's).
"""

from __future__ import annotations

from shardline.components.common.config import RunConfig
from shardline.components.common.kubernetes.names import COMPONENT_LABEL, OUR_LABELS, Names, selector
from shardline.components.common.kubernetes.objects import Manifest, Meta
from shardline.components.common.kubernetes.pods import WORKER, meta

_OURS = {"app.kubernetes.io/name": "shardline"}
PRIORITY_CLASS = "shardline-training"
#: The levels of the Pod Security Standards that a namespace is held to.
_POD_SECURITY = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "audit", "warn")}


def disruption_budget(config: RunConfig) -> Manifest:
    """The PodDisruptionBudget of a run's workers: a drain leaves the fewest of an elastic run, or takes one a time.

    At least one may always go: a node must be able to be drained.
    """
    workers = config.kubernetes.workers
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": meta(config, Names(config.run).train, WORKER).manifest(),
        "spec": {
            "minAvailable": min(workers.least, workers.replicas - 1),
            "selector": {"matchLabels": selector(config.run, WORKER)},
            # A pod that cannot become ready must not hold up the drain of its node.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def namespace(name: str) -> Manifest:
    """The Namespace, in which only pods of the restricted profile are let in."""
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": Meta(name, None, {**OUR_LABELS, **_POD_SECURITY}).manifest(),
    }


def priority_class() -> Manifest:
    """The PriorityClass of training: before what has none. Clusters order it against classes of their own."""
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": Meta(PRIORITY_CLASS, None, OUR_LABELS).manifest(),
        "value": 1000,
        "description": "Training runs of shardline: before pods without a class.",
    }


def egress_policy(name: str, *, ports: tuple[int, ...] = (443, 6443, 9000)) -> Manifest:
    """The NetworkPolicy that lets pods of the namespace `name` reach each other, DNS, and TCP `ports` anywhere.

    Args:
        ports: of the API server, the storage and the registry of models.
    """
    dns = [{"port": 53, "protocol": protocol} for protocol in ("UDP", "TCP")]
    allowed: list[Manifest] = [
        {"to": [{"podSelector": {"matchLabels": _OURS}}]},
        {"ports": dns},
        {"ports": [{"port": port, "protocol": "TCP"} for port in ports]},
    ]
    return _policy("shardline-egress", name, {"policyTypes": ["Egress"], "egress": allowed})


def network_policy(name: str) -> Manifest:
    """The NetworkPolicy of the namespace `name`: workers of any run are reached by workers alone, other pods by nobody.

    A policy cannot compare labels: workers of other runs are let in, too.
    """
    allowed = [{"from": [{"podSelector": {"matchLabels": {**_OURS, COMPONENT_LABEL: WORKER}}}]}]
    return _policy("shardline", name, {"policyTypes": ["Ingress"], "ingress": allowed})


def _policy(name: str, namespace: str, rules: Manifest) -> Manifest:
    """A NetworkPolicy of all our pods."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": Meta(name, namespace, OUR_LABELS).manifest(),
        "spec": {"podSelector": {"matchLabels": _OURS}, **rules},
    }
