"""How Prometheus finds the training pods, and reaches them. Pure.

Called by `render` (the PodMonitor of a run) and by `generate` (what is the namespace's). A PodMonitor is a kind of the
Prometheus Operator, which a cluster may have or not.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardline.components.common.config import RunConfig
from shardline.components.common.kubernetes.names import COMPONENT_LABEL, OUR_LABELS, Names, selector
from shardline.components.common.kubernetes.objects import Manifest, Meta
from shardline.components.common.kubernetes.pods import WORKER, meta
from shardline.components.common.series import PORT_NAME

_INTERVAL = "15s"
_WORKERS = {"app.kubernetes.io/name": "shardline", COMPONENT_LABEL: WORKER}
#: By this label of a namespace, which Kubernetes sets, Prometheus' own is known.
_NAMESPACE_LABEL = "kubernetes.io/metadata.name"


def pod_monitor(config: RunConfig) -> Manifest:
    """The PodMonitor of a run's workers, with the labels of `kubernetes.pod_monitor`."""
    labels = config.kubernetes.pod_monitor or {}
    return _monitor(
        meta(config, Names(config.run).train, WORKER, extra_labels=labels), pods=selector(config.run, WORKER)
    )


def pod_monitor_of_all(namespace: str) -> Manifest:
    """The PodMonitor of the workers of every run in `namespace`."""
    return _monitor(Meta("shardline", namespace, OUR_LABELS), pods=_WORKERS)


def scrape_policy(namespace: str, *, scraper: str = "monitoring") -> Manifest:
    """The NetworkPolicy that lets pods of the namespace `scraper` reach the metrics of the workers in `namespace`."""
    source = {"namespaceSelector": {"matchLabels": {_NAMESPACE_LABEL: scraper}}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": Meta("shardline-metrics", namespace, OUR_LABELS).manifest(),
        "spec": {
            "podSelector": {"matchLabels": dict(_WORKERS)},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [source], "ports": [{"port": PORT_NAME, "protocol": "TCP"}]}],
        },
    }


def _monitor(metadata: Meta, *, pods: Mapping[str, str]) -> Manifest:
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": metadata.manifest(),
        "spec": {
            "selector": {"matchLabels": dict(pods)},
            "podMetricsEndpoints": [{"port": PORT_NAME, "path": "/metrics", "interval": _INTERVAL}],
        },
    }
