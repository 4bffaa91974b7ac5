"""The operator as a Deployment: two pods, one of which acts. Pure. Called by `generate`.

It reads the folders of runs, so it has the variables and Secrets that the pods of a run have.
"""

from __future__ import annotations

from shardline.components.common.config import RunConfig
from shardline.components.common.kubernetes.access import account
from shardline.components.common.kubernetes.names import COMPONENT_LABEL, OUR_LABELS
from shardline.components.common.kubernetes.objects import Container, Manifest, Meta, Pod, Resources, disk_volume

_NAME, _PORT = "operator", 8080
_REPLICAS = 2
_SELECTOR = {"app.kubernetes.io/name": "shardline", COMPONENT_LABEL: _NAME}
#: What it takes grows with the pods of the cluster, some kilobytes each.
_RESOURCES = Resources("500m", "512Mi")


def operator(config: RunConfig) -> list[Manifest]:
    """The PodDisruptionBudget and the Deployment, for the namespace and with the light image of `config`."""
    name, section = account(_NAME), config.kubernetes
    meta = Meta(name, section.namespace, {**OUR_LABELS, COMPONENT_LABEL: _NAME}).manifest()
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": meta,
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": _SELECTOR}},
    }
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": meta,
        "spec": {"replicas": _REPLICAS, "selector": {"matchLabels": _SELECTOR}, "template": _template(config)},
    }
    return [budget, deployment]


def _template(config: RunConfig) -> Manifest:
    section = config.kubernetes
    image = section.light
    if image is None:
        raise ValueError("kubernetes.image is not set")
    pod = Pod(
        container=Container(
            name=_NAME,
            image=image,
            command=("shardline", "operator", "--namespace", section.namespace, "--port", str(_PORT)),
            resources=_RESOURCES,
            volumes=(disk_volume("tmp", "/tmp", size=None),),
            env={"HOME": "/tmp", "OMP_NUM_THREADS": "1", **section.env},
            secrets={name: tuple(keys) for name, keys in section.secrets.items()},
        ),
        labels={**OUR_LABELS, COMPONENT_LABEL: _NAME},
        service_account=account(_NAME),
        user=section.user,
        grace=30,
        api=True,
        restart=None,
        pull_secrets=tuple(section.image_pull_secrets),
        apart=_SELECTOR,
    )
    template = pod.template()
    (container,) = template["spec"]["containers"]
    probe = {"httpGet": {"path": "/", "port": "probes"}}
    container |= {
        "ports": [{"name": "probes", "containerPort": _PORT}],
        # It imports for a few seconds; one that hangs is made anew, and another acts meanwhile.
        "startupProbe": {**probe, "periodSeconds": 2, "failureThreshold": 30},
        "livenessProbe": {**probe, "periodSeconds": 20, "failureThreshold": 3},
        "readinessProbe": {**probe, "periodSeconds": 10},
    }
    return template
