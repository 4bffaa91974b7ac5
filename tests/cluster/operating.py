"""An operator as a process of its own, with the rights of its Roles and no others; and jobs for it. Called by tests."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from shardline.components.common import config as configs
from shardline.components.common.kubernetes.access import access, access_everywhere
from shardline.components.common.kubernetes.client import Client
from shardline.components.common.runfolder import CONFIG_FILE, DATASET_FILE, run_storage, write_json
from shardline.components.common.storage import Storage
from shardline.components.elasticity.operator.serve import LEASE
from tests.cluster import scripts
from tests.cluster.kube import PYTORCHJOB, Namespace, until
from tests.cluster.pods import NodePython, elastic_job
from tests.distributed.runs import CONFIG

#: A resource that no node has but by `slots`.
SLOT = "shardline.io/test-slot"
QUICK = {"interval": 0.5, "progress": 0.5, "settle": 1, "cool-down": 1, "pending-after": 6, "done-after": 2}
SLEEP = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)); time.sleep(3600)"


class Process:
    """A running `shardline operator`."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process, self._log = process, log

    @property
    def told(self) -> str:
        return self._log.read_text()

    def acts(self) -> bool:
        assert self.process.poll() is None, self.told
        return "looking after the jobs" in self.told

    def kill(self, signum: int = signal.SIGKILL) -> int:
        self.process.send_signal(signum)
        return self.process.wait(30)


class Operators:
    """Starts operators of one namespace."""

    def __init__(self, namespace: Namespace, folder: Path) -> None:
        self.namespace, self._folder = namespace, folder
        self.client = Client.connect(namespace=namespace.name)
        self._everywhere = access_everywhere(namespace.name)
        for each in [*access(namespace.name), *self._everywhere]:
            self.client.apply(each)
        self._kubeconfig = self._login()
        self._started: list[Process] = []

    def start(self, *arguments: str, **settings: float) -> Process:
        options = [f"--{name}={value}" for name, value in {**QUICK, **settings}.items()]
        log = self._folder / f"operator-{len(self._started)}.log"
        command = [sys.executable, "-m", "shardline.pipelines.cli.main", "operator", "--port=0"]
        with log.open("w") as file:
            process = subprocess.Popen(
                [*command, "--namespace", self.namespace.name, *options, *arguments],
                env={**os.environ, "KUBECONFIG": str(self._kubeconfig)},
                stdout=file,
                stderr=file,
                text=True,
            )
        self._started.append(Process(process, log))
        return self._started[-1]

    def leading(self, *arguments: str, **settings: float) -> Process:
        """An operator, once it is the one that acts."""
        started = self.start(*arguments, **settings)
        until(started.acts, "the operator acts", seconds=60)
        return started

    def holder(self) -> str | None:
        lease = self.client.get("Lease", LEASE)
        return lease and str(lease["spec"]["holderIdentity"])

    def end(self) -> None:
        for each in self._started:
            if each.process.poll() is None:
                each.kill()
            print(f"--- operator\n{each.told}")
        for manifest in self._everywhere:
            if manifest["kind"] == "ClusterRoleBinding":
                self.client.delete(manifest["kind"], manifest["metadata"]["name"])

    def _login(self) -> Path:
        """A kubeconfig of the operator's ServiceAccount."""
        core = self.namespace.cluster.core
        token = core.create_namespaced_service_account_token("shardline-operator", self.namespace.name, {"spec": {}})
        admin = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
        admin["users"] = [{"name": "operator", "user": {"token": token.status.token}}]
        for each in admin["contexts"]:
            each["context"]["user"] = "operator"
        path = self._folder / "kubeconfig"
        path.write_text(yaml.safe_dump(admin))
        return path


@contextlib.contextmanager
def slots(namespace: Namespace, each: Mapping[str, int]) -> Iterator[None]:
    """Have nodes offer so many slots for the length of the block."""
    core = namespace.cluster.core

    def offer(node: str, count: int | None) -> None:
        value = None if count is None else str(count)
        core.patch_node_status(node, {"status": {"capacity": {SLOT: value}, "allocatable": {SLOT: value}}})

    for node, count in each.items():
        offer(node, count)
    try:
        yield
    finally:
        for node in each:
            offer(node, None)


class Sleepers:
    """A job whose workers sleep, and the folder of its run, in which the test writes what training would."""

    def __init__(
        self,
        namespace: Namespace,
        python: NodePython,
        root: Path | str,
        name: str,
        *,
        workers: int,
        least: int,
        most: int,
    ) -> None:
        self.namespace, self.name = namespace, name
        self.client = Client.connect(namespace=namespace.name)
        text = CONFIG.format(run=name, root=root, corpus=root, steps=1000)
        config = configs.parse(text, source=name, ignore_environment=True).config
        self.run: Storage = run_storage(config)
        self.run.write(CONFIG_FILE, configs.dump(config).encode())
        write_json(self.run, DATASET_FILE, {"key": "none", "vocab": 400})
        spec = python.spec("-S", "-c", SLEEP, name="pytorch")
        spec["containers"][0]["resources"] = {
            side: {"cpu": "20m", "memory": "64Mi", SLOT: "1"} for side in ("requests", "limits")
        }
        spec["terminationGracePeriodSeconds"] = 1
        # Of a node that is gone its pods are to go soon.
        spec["tolerations"] = [
            {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 2}
            for key in ("not-ready", "unreachable")
        ]
        self.manifest = elastic_job(name, spec, workers=workers, least=least, most=most)
        self.manifest["metadata"] |= {
            "labels": {"shardline.io/run": name},
            "annotations": {"shardline.io/storage": str(root)},
        }

    def create(self) -> Sleepers:
        self.namespace.create(self.manifest)
        return self

    def get(self) -> dict[str, Any] | None:
        return self.client.get(PYTORCHJOB[1], self.name)

    @property
    def meta(self) -> dict[str, Any]:
        found = self.get()
        assert found is not None
        return dict(found["metadata"])

    @property
    def replicas(self) -> int:
        found = self.get()
        assert found is not None
        return int(found["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"])

    def running(self) -> list[str]:
        pods = self.namespace.pods(f"training.kubeflow.org/job-name={self.name}")
        return [
            str(pod.metadata.name)
            for pod in pods
            if pod.status.phase == "Running" and not pod.metadata.deletion_timestamp
        ]

    def until_running(self, count: int, *, seconds: float = 60) -> None:
        self.namespace.until(
            lambda: len(self.running()) == count == self.replicas, f"{count} of {self.name} run", seconds=seconds
        )

    def events(self, reason: str) -> list[dict[str, Any]]:
        found = [each for each in self.client.list("Event") if each["involvedObject"].get("name") == self.name]
        return [each for each in found if each["reason"] == reason]

    def resized(self) -> dict[str, Any]:
        return dict(json.loads(self.meta["annotations"]["shardline.io/resized"]))


def kubectl(*arguments: str) -> str:
    command = [str(scripts.folder() / "bin" / "kubectl"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
