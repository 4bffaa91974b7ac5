"""Whether the cluster grants the operator what it needs, asked before it begins. Called by `serve`.

The rights are those of `common.kubernetes.access`, which the Roles are made of, too.

Errors: `EnvironmentLacking` with all rights that lack.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardline.components.common.errors import EnvironmentLacking
from shardline.components.common.kubernetes.access import EVERYWHERE, ROLES, Rule
from shardline.components.common.kubernetes.client import Client

_OPERATOR = "operator"


def check(client: Client, *, namespace: str | None) -> None:
    """Raise unless the operator may look everywhere, and act in `namespace` (None: wherever it is let)."""
    lacking = [f"{each}, in the whole cluster" for each in _lacking(client, EVERYWHERE[_OPERATOR], namespace=None)]
    if namespace is not None:
        found = _lacking(client, ROLES[_OPERATOR], namespace=namespace)
        lacking += [f"{each}, in namespace {namespace}" for each in found]
    if lacking:
        raise EnvironmentLacking(
            "this user may not " + "; ".join(lacking),
            where="the cluster",
            hint="k8s/components/operator has the ClusterRole, `shardline render CONFIG --only access` the Role of a "
            "namespace",
        )


def _lacking(client: Client, rules: Iterable[Rule], *, namespace: str | None) -> Iterator[str]:
    for rule in rules:
        for resource in rule.resources:
            verbs = [verb for verb in rule.verbs if not _may(client, rule.group, resource, verb, namespace)]
            if verbs:
                yield f"{', '.join(verbs)} {resource}" + (f" ({rule.group})" if rule.group else "")


def _may(client: Client, group: str, resource: str, verb: str, namespace: str | None) -> bool:
    attributes = {"group": group, "resource": resource, "verb": verb}
    if namespace is not None:
        attributes["namespace"] = namespace
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "metadata": {},
        "spec": {"resourceAttributes": attributes},
    }
    return bool(client.create(review)["status"]["allowed"])
