"""Strategic merge patches, as `kubectl patch` has them: the last word on an object. Pure. Called by `render`.

The semantics are those of k8s.io/apimachinery/pkg/util/strategicpatch for what is in our objects: mappings are merged,
null takes a key out, lists are replaced but for those whose items have a key to be found by; an item or a mapping with
`$patch: delete` takes out what it names, one with `$patch: replace` is taken whole.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from shardline.components.common.kubernetes.objects import Manifest

#: By which key the items of a list are found, by the list's own name: the patchMergeKey of the API's types.
_KEYS = {
    "containers": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
_DIRECTIVE = "$patch"


def merged(target: Manifest, patch: Mapping[str, Any]) -> Manifest:
    """`target` with `patch` merged in; neither is changed.

    Raises:
        ValueError: an item of the patch lacks the key that it is to be found by, or has an unknown directive.
    """
    directive = _directive(patch)
    if directive == "replace":
        return {key: copy.deepcopy(value) for key, value in patch.items() if key != _DIRECTIVE}
    found = dict(target)
    for key, value in patch.items():
        if value is None or (isinstance(value, Mapping) and _directive(value) == "delete"):
            found.pop(key, None)
        elif isinstance(value, Mapping):
            before = found.get(key)
            found[key] = merged(before if isinstance(before, dict) else {}, value)
        elif isinstance(value, list) and key in _KEYS:
            found[key] = _merged_list(key, found.get(key) or [], value)
        else:
            found[key] = copy.deepcopy(value)
    return found


def _merged_list(name: str, target: Sequence[Any], patch: Sequence[Any]) -> list[Any]:
    by = _KEYS[name]
    found = list(target)
    for item in patch:
        if not isinstance(item, Mapping) or by not in item:
            raise ValueError(f"each item of {name} needs {by}, by which it is found")
        place = next((index for index, each in enumerate(found) if each.get(by) == item[by]), None)
        if _directive(item) == "delete":
            found = [each for each in found if each.get(by) != item[by]]
        elif place is None:
            found.append(merged({}, item))
        else:
            found[place] = merged(found[place], item)
    return found


def _directive(patch: Mapping[str, Any]) -> str | None:
    directive = patch.get(_DIRECTIVE)
    if directive not in (None, "delete", "replace"):
        raise ValueError(f"{_DIRECTIVE} should be delete or replace, not {directive!r}")
    return directive
