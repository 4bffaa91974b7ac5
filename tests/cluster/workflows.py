"""Workflows of a pipeline's runs, as Kubeflow makes, cancels and removes them; without Argo, which would act on them.

Called by the tests. On a cluster without Argo's CustomResourceDefinition one is made that takes anything.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from kubernetes import client
from kubernetes.client.exceptions import ApiException

from shardline.components.common.kubernetes.client import Client
from tests.cluster.kube import Cluster, until

_GROUP, _PLURAL = "argoproj.io", "workflows"
_ANY = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"{_PLURAL}.{_GROUP}"},
    "spec": {
        "group": _GROUP,
        "scope": "Namespaced",
        "names": {"plural": _PLURAL, "singular": "workflow", "kind": "Workflow", "listKind": "WorkflowList"},
        "versions": [{"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": _ANY}}],
    },
}


@contextlib.contextmanager
def defined(cluster: Cluster) -> Iterator[None]:
    """The kind is there for the length of the block."""
    extensions = client.ApiextensionsV1Api(cluster.api_client)
    try:
        extensions.create_custom_resource_definition(_DEFINITION)
    except ApiException as error:
        if error.status != 409:
            raise
        yield  # somebody else's
        return

    def served() -> bool:
        found = extensions.read_custom_resource_definition(f"{_PLURAL}.{_GROUP}")
        return any(each.type == "Established" and each.status == "True" for each in found.status.conditions or [])

    until(served, "the API server serves Workflows")
    yield
    extensions.delete_custom_resource_definition(f"{_PLURAL}.{_GROUP}")


@dataclass(frozen=True)
class Workflows:
    """Those of one namespace."""

    client: Client

    def start(self, name: str) -> str:
        # One that Argo, where it is there, leaves as it is.
        spec = {"suspend": True, "entrypoint": "none", "templates": [{"name": "none", "suspend": {}}]}
        manifest = {"apiVersion": f"{_GROUP}/v1alpha1", "kind": "Workflow", "metadata": {"name": name}, "spec": spec}
        self.client.create(manifest)
        return name

    def cancel(self, name: str) -> None:
        """As KFP's "terminate" does."""
        self.client.patch("Workflow", name, {"spec": {"activeDeadlineSeconds": 0}})

    def remove(self, name: str) -> None:
        """As its time to live does, or a person."""
        self.client.delete("Workflow", name)
