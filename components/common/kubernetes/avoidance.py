"""Nodes that pods are to stay away from, as a required node affinity. Pure.

Called by `render`, for objects that are to be made, and by the operator, for jobs that are there. A pod that is on such
a node stays; only new ones are kept away. A node is known by its label `kubernetes.io/hostname`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from shardline.components.common.kubernetes.objects import Manifest

HOSTNAME = "kubernetes.io/hostname"
#: On an object: the nodes that are left out because they are set aside, and are let in again when they no longer are.
LEFT_OUT = "shardline.io/left-out"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"

Terms = Sequence[Mapping[str, Any]]


def avoiding(terms: Terms, nodes: Collection[str], *, instead_of: Collection[str] = ()) -> list[dict[str, Any]]:
    """The terms of a node affinity, one of which has to hold, with `nodes` left out of each; none: any node will do.

    Args:
        terms: as they are. instead_of: nodes that they leave out and need no longer, unless they are in `nodes`.
    """
    wanted = set(nodes)
    found = []
    for term in terms or ({},):
        others, kept = [], wanted
        for each in term.get("matchExpressions") or ():
            if each.get("key") == HOSTNAME and each.get("operator") == "NotIn":
                kept = kept | (set(each.get("values") or ()) - set(instead_of))
            else:
                others.append(dict(each))
        rule = [{"key": HOSTNAME, "operator": "NotIn", "values": sorted(kept)}] if kept else []
        fields = {name: value for name, value in term.items() if name != "matchExpressions"}
        found.append({**({"matchExpressions": [*others, *rule]} if others or rule else {}), **fields})
    # An empty term is met by no node; where one was all there is, nothing is asked for any more.
    return [] if found == [{}] else found


def terms_of(spec: Mapping[str, Any]) -> Terms:
    """The terms of the required node affinity in the spec of a pod."""
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(_REQUIRED) or {}
    return tuple(affinity.get("nodeSelectorTerms") or ())


def affinity(terms: Terms) -> dict[str, Any]:
    """What stands under `affinity` of a pod's spec; null, as in a merge patch, takes it out."""
    return {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": list(terms)} if terms else None}}


def left_out(annotations: Mapping[str, str]) -> list[str]:
    """The nodes that an object leaves out as they are set aside, by its annotations."""
    return [name for name in annotations.get(LEFT_OUT, "").split(",") if name]


def without(manifest: Manifest, *, leave_out: Collection[str], aside: Collection[str] = ()) -> Manifest:
    """`manifest` with all its pods kept away from nodes; the same for an object that makes no pods.

    Args:
        leave_out: by name, whatever becomes of them; aside: those that are set aside, which the object then tells.
    """
    kept: Manifest = _kept_away(manifest, {*leave_out, *aside})
    told = ",".join(sorted({*aside} - {*leave_out}))
    if kept == manifest or not told:
        return kept
    metadata = kept["metadata"]
    return {**kept, "metadata": {**metadata, "annotations": {**(metadata.get("annotations") or {}), LEFT_OUT: told}}}


def _kept_away(value: Any, nodes: Collection[str]) -> Any:
    """`value` with every pod's spec in it changed."""
    if isinstance(value, list):
        return [_kept_away(each, nodes) for each in value]
    if not isinstance(value, dict):
        return value
    if "containers" not in value:
        return {name: _kept_away(each, nodes) for name, each in value.items()}
    if not nodes:
        return value
    before = value.get("affinity") or {}
    asked = affinity(avoiding(terms_of(value), nodes))["nodeAffinity"]
    return {**value, "affinity": {**before, "nodeAffinity": {**(before.get("nodeAffinity") or {}), **asked}}}
