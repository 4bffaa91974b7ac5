"""What a pod asks of a node, from its spec: amounts, and where it may be put. Pure.

Called by `facts`. The amounts are those that the scheduler counts (k8s.io/component-helpers/resource: containers and
init containers that stay, or the largest init container, with the overhead); the rules are node selector, required node
affinity, tolerations, and required anti-affinity to pods of the same node. Other rules, such as volumes that are bound
to a zone, are not looked at: a pod that cannot be placed for one of them stays pending, and that is acted upon.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from shardline.components.common.kubernetes.quantities import amount

Amounts = Mapping[str, Decimal]
_HOSTNAME = "kubernetes.io/hostname"


@dataclass(frozen=True, kw_only=True)
class Demands:
    """What one pod asks for.

    Attributes:
        terms: of its required node affinity, one of which has to hold; empty: any node.
        apart: for each required anti-affinity, the labels that no pod on the same node may have.
    """

    requests: Amounts
    selector: Mapping[str, str] = field(default_factory=dict)
    terms: tuple[Mapping[str, Any], ...] = ()
    tolerations: tuple[Mapping[str, Any], ...] = ()
    apart: tuple[Mapping[str, str], ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)


def demands_of(spec: Mapping[str, Any], labels: Mapping[str, str]) -> Demands:
    """The demands of a pod with the `spec` and `labels` of a pod or of a template."""
    affinity = spec.get("affinity") or {}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    nodes = (affinity.get("nodeAffinity") or {}).get(required) or {}
    return Demands(
        requests=_requests(spec),
        selector=spec.get("nodeSelector") or {},
        terms=tuple(nodes.get("nodeSelectorTerms") or ()),
        tolerations=tuple(spec.get("tolerations") or ()),
        apart=tuple(
            (each.get("labelSelector") or {}).get("matchLabels") or {}
            for each in (affinity.get("podAntiAffinity") or {}).get(required) or ()
            if each.get("topologyKey") == _HOSTNAME
        ),
        labels=labels,
    )


def tolerated(taint: Mapping[str, Any], tolerations: Iterable[Mapping[str, Any]]) -> bool:
    """Whether one of `tolerations` is for `taint`, or it keeps no pod away."""
    if taint.get("effect") == "PreferNoSchedule":
        return True
    return any(_tolerates(each, taint) for each in tolerations)


def selected(term: Mapping[str, Any], *, name: str, labels: Mapping[str, str]) -> bool:
    """Whether a node of that name and with those labels meets a term of a node affinity."""
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:
        return False  # as the scheduler has it: an empty term is met by no node
    return all(_holds(each, labels.get(each["key"])) for each in expressions) and all(
        _holds(each, name) for each in fields if each["key"] == "metadata.name"
    )


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return toleration.get("key") == taint["key"] and (toleration.get("value") or "") == (taint.get("value") or "")


def _holds(expression: Mapping[str, Any], value: str | None) -> bool:
    operator, values = expression["operator"], expression.get("values") or ()
    if operator == "In":
        return value in values
    if operator == "NotIn":
        return value not in values
    if operator == "Exists":
        return value is not None
    if operator == "DoesNotExist":
        return value is None
    try:
        number, bound = int(value or ""), int(next(iter(values), ""))
    except ValueError:
        return False
    return number > bound if operator == "Gt" else number < bound


def quantity(text: Any) -> Decimal:
    """The number that a quantity of the API server stands for; it may be 0, as `amount` refuses."""
    try:
        return amount(str(text))
    except ValueError:
        return Decimal(0)


def _requests(spec: Mapping[str, Any]) -> Amounts:
    staying: dict[str, Decimal] = {}
    largest: dict[str, Decimal] = {}
    for each in spec.get("initContainers") or ():
        if each.get("restartPolicy") == "Always":
            staying = _sum(staying, _of_container(each))
        else:
            largest = _largest(largest, _sum(staying, _of_container(each)))
    running = staying
    for each in spec.get("containers") or ():
        running = _sum(running, _of_container(each))
    overhead = {name: quantity(text) for name, text in (spec.get("overhead") or {}).items()}
    return {**_sum(_largest(largest, running), overhead), "pods": Decimal(1)}


def _of_container(container: Mapping[str, Any]) -> dict[str, Decimal]:
    resources = container.get("resources") or {}
    # Where a template states a limit alone, the API server makes it the request.
    stated = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: quantity(text) for name, text in stated.items()}


def _sum(first: Amounts, second: Amounts) -> dict[str, Decimal]:
    return {name: first.get(name, Decimal(0)) + second.get(name, Decimal(0)) for name in {*first, *second}}


def _largest(first: Amounts, second: Amounts) -> dict[str, Decimal]:
    return {name: max(first.get(name, Decimal(0)), second.get(name, Decimal(0))) for name in {*first, *second}}
