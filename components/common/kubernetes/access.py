"""Who may do what in the namespace: ServiceAccounts and the least Roles. Pure.

    worker    the pods that train: they meet through Leases and ConfigMaps, and look at each other
    step      the pods of the other steps: they never talk to the API server
    launcher  creates, follows and deletes a run's jobs
    operator  looks after running jobs
    viewer    reads, and nothing of a Secret

Called by `render`, by `generate`, and by the operator, which asks whether it has its rights. All are of the namespace
but one: the operator reads in the whole cluster, as what a node has room for depends on the pods of everybody.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardline.components.common.config import RunConfig
from shardline.components.common.kubernetes.names import OUR_LABELS
from shardline.components.common.kubernetes.objects import Manifest, Meta

_READ = ("get", "list", "watch")
_KEEP = (*_READ, "create", "update", "patch", "delete")


@dataclass(frozen=True)
class Rule:
    """Verbs on resources of one API group; "" is the core group."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]

    def manifest(self) -> Manifest:
        return {"apiGroups": [self.group], "resources": list(self.resources), "verbs": list(self.verbs)}


_MEETING = (Rule("coordination.k8s.io", ("leases",), _KEEP), Rule("", ("configmaps",), _KEEP))
#: Whether the pipeline's run was cancelled stands in its Workflow.
_CANCELLED = Rule("argoproj.io", ("workflows",), ("get",))
_LOOKING = (
    Rule("", ("pods", "events"), _READ),
    Rule("", ("pods/log",), ("get",)),
    _CANCELLED,
)

#: What each part is allowed, by its name.
ROLES: dict[str, tuple[Rule, ...]] = {
    "worker": (*_MEETING, Rule("", ("pods",), _READ)),
    "launcher": (
        Rule("kubeflow.org", ("pytorchjobs",), _KEEP),
        Rule("batch", ("jobs",), (*_READ, "create", "patch", "delete")),
        Rule("policy", ("poddisruptionbudgets",), (*_READ, "create", "patch", "delete")),
        Rule("monitoring.coreos.com", ("podmonitors",), ("get", "create", "patch")),
        *_MEETING,
        *_LOOKING,
    ),
    "operator": (
        Rule("kubeflow.org", ("pytorchjobs",), ("get", "patch", "delete")),
        Rule("", ("pods",), ("delete",)),
        Rule("", ("events",), ("get", "create", "patch")),
        _CANCELLED,
        # Its own, by which one of several acts.
        Rule("coordination.k8s.io", ("leases",), ("get", "create", "patch", "delete")),
    ),
    "viewer": (
        Rule("kubeflow.org", ("pytorchjobs",), _READ),
        Rule("batch", ("jobs", "cronjobs"), _READ),
        Rule("coordination.k8s.io", ("leases",), _READ),
        Rule("", ("configmaps", "pods", "events"), _READ),
        Rule("", ("pods/log",), ("get",)),
    ),
}


#: What a part may do in the whole cluster.
EVERYWHERE: dict[str, tuple[Rule, ...]] = {
    "operator": (
        Rule("", ("nodes", "pods"), ("list", "watch")),
        Rule("kubeflow.org", ("pytorchjobs",), ("list", "watch")),
    ),
}


def account(name: str) -> str:
    return f"shardline-{name}"


def worker_account(config: RunConfig) -> str:
    return config.kubernetes.service_account or account("worker")


def step_account(config: RunConfig) -> str:
    return config.kubernetes.service_account or account("step")


def access(namespace: str, *, service_account: str | None = None) -> list[Manifest]:
    """ServiceAccounts, Roles and their bindings in `namespace`.

    Args:
        service_account: one that is there already and that all pods run as: it gets the workers' rights.
    """
    own = (
        ("launcher", "operator", "viewer") if service_account else ("worker", "step", "launcher", "operator", "viewer")
    )
    found = [_service_account(account(name), namespace) for name in own]
    found += [_role(account(name), namespace, rules) for name, rules in ROLES.items()]
    for name in ROLES:
        subject = service_account if name == "worker" and service_account else account(name)
        found.append(_binding(account(name), namespace, subject))
    return found


def access_everywhere(namespace: str) -> list[Manifest]:
    """The ClusterRoles of `EVERYWHERE`, and their bindings to the ServiceAccounts in `namespace`."""
    found: list[Manifest] = []
    for name, rules in EVERYWHERE.items():
        role = {**_role(account(name), None, rules), "kind": "ClusterRole"}
        # Another namespace may have an operator of its own: what binds one must not unbind the other.
        binding = _binding(account(name), namespace, account(name))
        binding["metadata"] = Meta(f"{account(name)}-{namespace}", None, OUR_LABELS).manifest()
        binding["roleRef"]["kind"] = "ClusterRole"
        found += [role, {**binding, "kind": "ClusterRoleBinding"}]
    return found


def _service_account(name: str, namespace: str) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": Meta(name, namespace, OUR_LABELS).manifest(),
        # A pod that needs the token asks for it.
        "automountServiceAccountToken": False,
    }


def _role(name: str, namespace: str | None, rules: tuple[Rule, ...]) -> Manifest:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": Meta(name, namespace, OUR_LABELS).manifest(),
        "rules": [rule.manifest() for rule in rules],
    }


def _binding(name: str, namespace: str, subject: str) -> Manifest:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": Meta(name, namespace, OUR_LABELS).manifest(),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": subject, "namespace": namespace}],
    }
