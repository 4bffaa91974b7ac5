"""Pods that run the code of this checkout, and the S3 server that is one of them.

Called by the fixtures of conftest.py. On the box the pods mount the checkout and the Python that runs the tests, read
only, by hostPath: no image has to be built, and what runs is what was edited. Other clusters get an image's name.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.kube import PYTORCHJOB, Namespace
from tests.contract.servers import MOTO, answering, ended, free_port

ROOT = Path(__file__).parents[2]
BASE = "localhost/base:1"
USER = 12345  # anyone but root


@dataclass(frozen=True)
class NodePython:
    """How a pod runs our code: an image, the Python in it, and the folders of the node that it mounts."""

    image: str
    python: str
    folders: tuple[Path, ...] = ()

    @classmethod
    def of_checkout(cls) -> NodePython:
        """For the box: this checkout, its virtual environment, and the Python below that."""
        base = Path(sys.base_prefix)
        in_image = base == Path("/usr")  # Debian's own: the base image has the same
        return cls(BASE, sys.executable, (ROOT,) if in_image else (ROOT, base))

    def spec(
        self,
        *arguments: str,
        name: str = "main",
        cpu: str = "500m",
        memory: str = "1Gi",
        env: dict[str, str] | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        """A pod's spec whose one container, `name`, runs Python with `arguments`.

        It runs as a user who is not root, may write to /tmp alone, and keeps to the restricted Pod Security Standard
        but for the folders. `more` are fields of the spec.
        """
        variables = {"HOME": "/tmp", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", **(env or {})}
        limits = {"cpu": cpu, "memory": memory}
        folders = {f"node-{i}": str(each) for i, each in enumerate(self.folders)}
        mounts = [{"name": each, "mountPath": path, "readOnly": True} for each, path in folders.items()]
        volumes = [{"name": each, "hostPath": {"path": path}} for each, path in folders.items()]
        container = {
            "name": name,
            "image": self.image,
            "imagePullPolicy": "IfNotPresent",
            "command": [self.python, *arguments],
            "workingDir": "/tmp",
            "env": [{"name": key, "value": value} for key, value in variables.items()],
            "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": limits},
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
            "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, *mounts],
        }
        return {
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER,
                "runAsGroup": USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 5,
            "containers": [container],
            "volumes": [{"name": "tmp", "emptyDir": {}}, *volumes],
            **more,
        }


def pod(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"restartPolicy": "Never", **spec}}


def elastic_job(name: str, spec: dict[str, Any], *, workers: int, least: int, most: int) -> dict[str, Any]:
    """A PyTorchJob of workers alone, whose container has to be named `pytorch`."""
    api_version, kind = PYTORCHJOB
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": name},
        "spec": {
            "nprocPerNode": "1",
            "runPolicy": {"cleanPodPolicy": "Running"},
            "elasticPolicy": {"minReplicas": least, "maxReplicas": most, "rdzvBackend": "c10d"},
            "pytorchReplicaSpecs": {
                "Worker": {"replicas": workers, "restartPolicy": "ExitCode", "template": {"spec": spec}}
            },
        },
    }


@dataclass(frozen=True)
class S3:
    """An S3 server: its URL for pods of any namespace, and its URL for this machine. Any key will do."""

    inside: str
    outside: str
    namespace: Namespace

    def pod(self) -> Any:
        """The one pod that it is."""
        (found,) = self.namespace.pods("app=s3")
        return found


@contextlib.contextmanager
def s3_server(namespace: Namespace, python: NodePython) -> Iterator[S3]:
    """moto's server as a Deployment and a Service named `s3`. It forgets everything when its pod ends."""
    port, labels = 5000, {"app": "s3"}
    serve = ("-c", MOTO, "-H", "0.0.0.0", "-p", str(port))
    # Under a name that is not Amazon's, moto would take the first part of the name for the bucket.
    spec = python.spec(*serve, name="s3", cpu="1", env={"S3_IGNORE_SUBDOMAIN_BUCKETNAME": "true"})
    spec["containers"][0]["readinessProbe"] = {"tcpSocket": {"port": port}, "periodSeconds": 1}
    namespace.create(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "s3"},
            "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}},
        }
    )
    service = {"selector": labels, "ports": [{"port": port}]}
    namespace.create({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s3"}, "spec": service})
    namespace.until(lambda: _ready_address(namespace) is not None, "the S3 server answers")
    inside = f"http://s3.{namespace.name}.svc:{port}"
    if namespace.cluster.box:
        yield S3(inside, f"http://{_ready_address(namespace)}:{port}", namespace)
    else:
        with _forwarded(namespace, port) as outside:
            yield S3(inside, outside, namespace)


def _ready_address(namespace: Namespace) -> str | None:
    for each in namespace.pods("app=s3"):
        if any(condition.type == "Ready" and condition.status == "True" for condition in each.status.conditions or []):
            return str(each.status.pod_ip)
    return None


@contextlib.contextmanager
def _forwarded(namespace: Namespace, port: int) -> Iterator[str]:
    here = free_port()
    command = ["kubectl", "-n", namespace.name, "port-forward", "service/s3", f"{here}:{port}"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    with ended(process):
        yield answering(f"http://127.0.0.1:{here}", process)
