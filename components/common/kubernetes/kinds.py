"""The kinds of objects that we deal with, and where the API server has them. Pure. Called by the client."""

from __future__ import annotations

from dataclasses import dataclass

from shardline.components.common.kubernetes.objects import Manifest


@dataclass(frozen=True)
class Kind:
    """A kind of object: its API version, what its resource is called, and whether objects stand in a namespace."""

    name: str
    version: str
    resource: str
    namespaced: bool = True

    @property
    def group(self) -> str:
        """The API group; "" for the core."""
        return self.version.rpartition("/")[0]

    def path(self, namespace: str | None, name: str | None = None, *, part: str | None = None) -> str:
        """The path of one object, of a `part` of it such as status, or without a name of all of them."""
        words = ["apis" if self.group else "api", self.version]
        if self.namespaced and namespace is not None:
            words += ["namespaces", namespace]
        words += [self.resource, *filter(None, [name, part])]
        return "/" + "/".join(words)


_KINDS = (
    Kind("ClusterRole", "rbac.authorization.k8s.io/v1", "clusterroles", namespaced=False),
    Kind("ClusterRoleBinding", "rbac.authorization.k8s.io/v1", "clusterrolebindings", namespaced=False),
    Kind("ConfigMap", "v1", "configmaps"),
    Kind("CronJob", "batch/v1", "cronjobs"),
    Kind("Deployment", "apps/v1", "deployments"),
    Kind("Event", "v1", "events"),
    Kind("Job", "batch/v1", "jobs"),
    Kind("Lease", "coordination.k8s.io/v1", "leases"),
    Kind("Namespace", "v1", "namespaces", namespaced=False),
    Kind("Node", "v1", "nodes", namespaced=False),
    Kind("NetworkPolicy", "networking.k8s.io/v1", "networkpolicies"),
    Kind("Pod", "v1", "pods"),
    Kind("PodDisruptionBudget", "policy/v1", "poddisruptionbudgets"),
    Kind("PodMonitor", "monitoring.coreos.com/v1", "podmonitors"),
    Kind("PriorityClass", "scheduling.k8s.io/v1", "priorityclasses", namespaced=False),
    Kind("PrometheusRule", "monitoring.coreos.com/v1", "prometheusrules"),
    Kind("PyTorchJob", "kubeflow.org/v1", "pytorchjobs"),
    Kind("Role", "rbac.authorization.k8s.io/v1", "roles"),
    Kind("RoleBinding", "rbac.authorization.k8s.io/v1", "rolebindings"),
    Kind("SelfSubjectAccessReview", "authorization.k8s.io/v1", "selfsubjectaccessreviews", namespaced=False),
    Kind("ServiceAccount", "v1", "serviceaccounts"),
    Kind("TrainJob", "trainer.kubeflow.org/v1alpha1", "trainjobs"),
    Kind("TrainingRuntime", "trainer.kubeflow.org/v1alpha1", "trainingruntimes"),
    Kind("Workflow", "argoproj.io/v1alpha1", "workflows"),
)
KINDS = {kind.name: kind for kind in _KINDS}

#: What has to be installed for the kinds that do not come with Kubernetes, by their group.
INSTALLS = {
    "kubeflow.org": "the Kubeflow training operator (v1.9) with `kubectl apply --server-side -k "
    "github.com/kubeflow/trainer/manifests/overlays/standalone?ref=v1.9.4`",
    "trainer.kubeflow.org": "Kubeflow Trainer v2 with `kubectl apply --server-side -k "
    "github.com/kubeflow/trainer/manifests/overlays/manager?ref=v2.1.0`",
    "argoproj.io": "Kubeflow Pipelines",
    "monitoring.coreos.com": "the Prometheus Operator (kube-prometheus-stack brings it), or leave "
    "kubernetes.pod_monitor out",
}


def kind_of(manifest: Manifest) -> Kind:
    """The kind of `manifest`."""
    return KINDS[manifest["kind"]]
