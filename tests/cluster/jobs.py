"""A run whose steps are jobs of the cluster, applied as `shardline render` prints them. Called by the tests.

What runs in the pods is an image of ours, or this checkout by patches in the run's own config; all else is rendered as
for a user.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pytest

from shardline.components.common import config as configs
from shardline.components.common.config import Loaded
from shardline.components.common.kubernetes.client import Client
from shardline.components.common.kubernetes.render import Part, render
from shardline.components.common.runfolder import run_storage
from shardline.components.common.storage import Storage
from shardline.components.elasticity import jobstate
from shardline.components.sharding import step as sharding
from tests.cluster.kube import PYTORCHJOB, Namespace, until
from tests.cluster.pods import S3, NodePython
from tests.distributed.runs import CONFIG

BUCKET = "runs"
CORPUS = f"s3://{BUCKET}/corpus"
STEPS = 120
OVERRIDES = ("training.checkpoint.every=10", "training.schedule.decay_steps=120", "monitoring.flush_seconds=0.5")
#: Of an S3 server that takes any.
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}


@dataclass(frozen=True)
class ClusterRun:
    """One run; `client` is ours, in its namespace."""

    loaded: Loaded
    namespace: Namespace
    client: Client

    @property
    def run(self) -> Storage:
        return run_storage(self.loaded.config)

    @property
    def name(self) -> str:
        return self.loaded.config.run

    def apply(self, *parts: Part) -> None:
        for manifest in render(self.loaded, only=parts):
            self.client.apply(manifest)

    def shard(self) -> None:
        """Make the data set, from here."""
        sharding.run(self.loaded.config)

    def phase(self) -> str:
        job = self.client.get("PyTorchJob", self.name)
        return "gone" if job is None else jobstate.phase_of(job)

    def trained(self, *, seconds: float = 300.0) -> None:
        """Wait until the training job has succeeded."""

        def ended() -> bool:
            phase = self.phase()
            if phase == "failed":
                pytest.fail(f"training failed (namespace {self.namespace.name})")
            return phase == "succeeded"

        self.until(ended, "training has succeeded", seconds=seconds)

    def completed(self, step: str, *, seconds: float = 240.0) -> None:
        """Wait until the Job of a step is complete."""

        def ended() -> bool:
            job = self.client.get("Job", f"{self.name}-{step}")
            assert job is not None
            held = {each["type"] for each in job["status"].get("conditions", []) if each["status"] == "True"}
            if "Failed" in held:
                pytest.fail(f"{step} failed (namespace {self.namespace.name})")
            return "Complete" in held

        self.until(ended, f"{step} is complete", seconds=seconds)

    def workers(self) -> dict[str, str]:
        """The uid of each worker pod that runs."""
        return {
            str(pod.metadata.name): str(pod.metadata.uid)
            for pod in self.namespace.pods(f"training.kubeflow.org/job-name={self.name}")
            if pod.status.phase == "Running" and not pod.metadata.deletion_timestamp
        }

    def until(self, condition: Callable[[], bool], what: str, *, seconds: float = 240.0) -> None:
        until(condition, f"{what} (namespace {self.namespace.name})", seconds=seconds)

    def scale(self, workers: int) -> None:
        change = {"spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": workers}}}}
        self.client.patch(PYTORCHJOB[1], self.name, change)


def cluster_run(
    name: str,
    *,
    namespace: Namespace,
    image: str,
    s3: S3,
    steps: int = STEPS,
    workers: dict[str, Any],
    env: Mapping[str, str] = MappingProxyType({}),
    overrides: tuple[str, ...] = (),
    patch: Sequence[dict[str, Any]] = (),
) -> ClusterRun:
    """A run with its access rights in place; the environment has to lead to the S3 server from here.

    Args:
        env: more of each pod's environment.
        patch: what is changed of what is rendered, as `kubernetes.patch` has it.
    """
    kubernetes = {
        "image": image,
        "namespace": namespace.name,
        "env": {"AWS_ENDPOINT_URL": s3.inside, "PYTHONDONTWRITEBYTECODE": "1", **env},
        "secrets": {"s3": "all"},
        "workers": {"cpu": "1", "memory": "3Gi", "shm": "64Mi", **workers},
        "sharding": {"parts": 3, "cpu": "500m", "memory": "1Gi"},
        "grace": 30,
        "patch": list(patch),
    }
    namespace.create({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s3"}, "stringData": KEYS})
    text = CONFIG.format(run=name, root=f"s3://{BUCKET}/{name}", corpus=CORPUS, steps=steps)
    text += f"kubernetes: {json.dumps(kubernetes)}\nelastic: {{grace: 20}}\n"
    loaded = configs.parse(text, source=name, overrides=overrides, ignore_environment=True)
    run = ClusterRun(loaded, namespace, Client.connect(namespace=namespace.name))
    run.apply("access")
    return run


#: What the fixture `make` gives.
Make = Callable[..., ClusterRun]


def of_checkout(python: NodePython, run: str) -> list[dict[str, Any]]:
    """Have `shardline` mean this checkout: the command of each container, and the folders of the node it mounts."""
    config = "/etc/shardline/config.yaml"
    found = [_patch(python, "PyTorchJob", run, container="pytorch", command=["worker", config])]
    for step, command in {
        "shard": ["shard", config, "--part", "$(JOB_COMPLETION_INDEX)/3"],
        "merge": ["shard", config, "--merge"],
        "evaluate": ["evaluate", config],
        "report": ["report", config],
    }.items():
        found.append(_patch(python, "Job", f"{run}-{step}", container=step, command=command))
    return found


def _patch(python: NodePython, kind: str, name: str, *, container: str, command: list[str]) -> dict[str, Any]:
    folders = {f"node-{place}": str(path) for place, path in enumerate(python.folders)}
    changed = {
        "name": container,
        "command": [python.python, "-m", "shardline.pipelines.cli.main", *command],
        "imagePullPolicy": "IfNotPresent",
        "volumeMounts": [{"name": each, "mountPath": path, "readOnly": True} for each, path in folders.items()],
    }
    volumes = [{"name": each, "hostPath": {"path": path}} for each, path in folders.items()]
    template = {"template": {"spec": {"containers": [changed], "volumes": volumes}}}
    spec = {"pytorchReplicaSpecs": {"Worker": template}} if kind == "PyTorchJob" else template
    return {"kind": kind, "name": name, "patch": {"spec": spec}}
