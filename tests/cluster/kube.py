"""A cluster as tests see it: the official client, plain dicts in, and waiting that says what it waited for.

Called by the fixtures of conftest.py and by the tests that take them. `Cluster` is one for the whole session, a
`Namespace` is a test's own and gone after it.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic import DynamicClient
from kubernetes.dynamic.exceptions import NotFoundError

PYTORCHJOB = ("kubeflow.org/v1", "PyTorchJob")
SESSION = "shardline.io/test-session"


@dataclass(frozen=True)
class Cluster:
    """`api_client` is the loaded client of kubernetes.client; `box` tells whether this machine holds the nodes."""

    api_client: client.ApiClient
    box: bool
    session: str = field(default_factory=lambda: uuid.uuid4().hex)

    @classmethod
    def load(cls, kubeconfig: Path | None, *, box: bool) -> Cluster:
        """The cluster of a file, or of KUBECONFIG; kubernetes.config.ConfigException when there is none."""
        return cls(config.new_client_from_config(str(kubeconfig) if kubeconfig else None), box)

    @cached_property
    def core(self) -> client.CoreV1Api:
        return client.CoreV1Api(self.api_client)

    @cached_property
    def dynamic(self) -> DynamicClient:
        """For objects of any kind, as dicts."""
        # A path that cannot be: left alone, it takes what it found out about an earlier cluster from a file in /tmp.
        return DynamicClient(self.api_client, cache_file=f"{os.devnull}/none")

    def version(self) -> str:
        return str(client.VersionApi(self.api_client).get_code(_request_timeout=10).git_version)

    def nodes(self) -> dict[str, bool]:
        """Each node's name, and whether it is ready."""
        return {
            node.metadata.name: any(each.type == "Ready" and each.status == "True" for each in node.status.conditions)
            for node in self.core.list_node().items
        }

    def has_pytorchjob(self) -> bool:
        try:
            client.CustomObjectsApi(self.api_client).list_cluster_custom_object(
                "kubeflow.org", "v1", "pytorchjobs", limit=1
            )
        except ApiException as error:
            if error.status == 404:
                return False
            raise
        return True


@dataclass(frozen=True)
class Namespace:
    """A namespace that lives as long as a test."""

    cluster: Cluster
    name: str

    def create(self, body: dict[str, Any]) -> dict[str, Any]:
        """Creates an object of any kind; kubernetes.client.ApiException, with `reason()`, when it is refused."""
        made = self._kind(body["apiVersion"], body["kind"]).create(body=body, namespace=self.name)
        return dict(made.to_dict())

    def get(self, api_version: str, kind: str, name: str) -> dict[str, Any] | None:
        try:
            return dict(self._kind(api_version, kind).get(name=name, namespace=self.name).to_dict())
        except NotFoundError:
            return None

    def delete(self, api_version: str, kind: str, name: str) -> None:
        self._kind(api_version, kind).delete(name=name, namespace=self.name, body={"propagationPolicy": "Background"})

    def pods(self, selector: str = "") -> list[client.V1Pod]:
        """The pods, by name."""
        pods = self.cluster.core.list_namespaced_pod(self.name, label_selector=selector).items
        return sorted(pods, key=lambda pod: str(pod.metadata.name))

    def pod(self, name: str) -> client.V1Pod | None:
        return next((pod for pod in self.pods() if pod.metadata.name == name), None)

    def phase(self, pod: str) -> str | None:
        found = self.pod(pod)
        return found and str(found.status.phase)

    def starts(self, pod: str) -> dict[str, int]:
        """How often containers of the pods of this name were started, by the pod's uid; also of pods that are gone."""
        events = self.cluster.core.list_namespaced_event(
            self.name, field_selector=f"reason=Started,involvedObject.kind=Pod,involvedObject.name={pod}"
        )
        found: Counter[str] = Counter()
        for event in events.items:
            found[str(event.involved_object.uid)] += event.count or 1
        return dict(found)

    def logs(self, pod: str) -> str:
        # Loaded by the client, a log that is JSON would be parsed and printed again.
        answer = self.cluster.core.read_namespaced_pod_log(pod, self.name, _preload_content=False)
        return str(answer.data.decode())

    def succeeded(self, pod: str, *, seconds: float = 120.0) -> str:
        """Waits until the pod has succeeded, and gives its log; the test fails as soon as the pod has failed."""

        def ended() -> bool:
            phase = self.phase(pod)
            if phase == "Failed":
                pytest.fail(f"pod {pod} failed (namespace {self.name})")
            return phase == "Succeeded"

        self.until(ended, f"pod {pod} succeeded", seconds=seconds)
        return self.logs(pod)

    def until(self, condition: Callable[[], bool], what: str, *, seconds: float = 120.0) -> None:
        """Waits until `condition` holds; the test fails with `what` after `seconds`."""
        until(condition, f"{what} (namespace {self.name})", seconds=seconds)

    def _kind(self, api_version: str, kind: str) -> Any:
        return self.cluster.dynamic.resources.get(api_version=api_version, kind=kind)


def reason(refused: ApiException) -> str:
    """What the API server said."""
    return str(json.loads(refused.body)["message"])


def until(condition: Callable[[], bool], what: str, *, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.2)


@contextlib.contextmanager
def fresh_namespace(cluster: Cluster, *, level: str, failed: Callable[[], bool]) -> Iterator[Namespace]:
    """A namespace in which pods have to keep to a level of the Pod Security Standards.

    At the end its pods are gone and it is being deleted, for which Kubernetes takes some five seconds: `await_removal`
    waits for that, once a session. If the test has `failed` by then, events and logs are printed first.
    """
    name = f"test-{uuid.uuid4().hex[:8]}"
    labels = {"pod-security.kubernetes.io/enforce": level, SESSION: cluster.session}
    cluster.core.create_namespace({"metadata": {"name": name, "labels": labels}})
    namespace = Namespace(cluster, name)
    try:
        # Before it has this one the API server refuses pods.
        until(lambda: bool(_service_accounts(namespace)), f"the default service account of {name}")
        yield namespace
    finally:
        if failed():
            _explain(namespace)
        cluster.core.delete_namespace(name)  # from now on nothing new starts in it
        cluster.core.delete_collection_namespaced_pod(name, grace_period_seconds=0)
        until(lambda: not namespace.pods(), f"no pods in {name}", seconds=60)


def await_removal(cluster: Cluster) -> None:
    """Waits until no namespace of this session is there."""
    until(lambda: not _of_session(cluster), "the session's namespaces are gone")


def _of_session(cluster: Cluster) -> list[Any]:
    return list(cluster.core.list_namespace(label_selector=f"{SESSION}={cluster.session}").items)


def _service_accounts(namespace: Namespace) -> list[Any]:
    return list(namespace.cluster.core.list_namespaced_service_account(namespace.name).items)


def _explain(namespace: Namespace) -> None:
    print(f"\n--- events of namespace {namespace.name}")
    for event in namespace.cluster.core.list_namespaced_event(namespace.name).items:
        print(f"{event.involved_object.kind}/{event.involved_object.name} {event.reason}: {event.message}")
    for pod in namespace.pods():
        print(f"--- pod {pod.metadata.name} on {pod.spec.node_name}: {pod.status.phase}")
        for status in pod.status.container_statuses or []:
            print(f"{status.name}: {status.state.to_dict()}")
        with contextlib.suppress(ApiException):  # it never started, or its node is gone
            print(namespace.logs(pod.metadata.name))
