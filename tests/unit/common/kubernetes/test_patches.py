"""Strategic merge patches: what kubectl patch does to the same object."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from shardline.components.common.kubernetes.patches import merged

POD = {
    "containers": [
        {"name": "a", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}], "args": ["1", "2"]},
        {"name": "b"},
    ],
    "nodeSelector": {"pool": "gpu"},
    "tolerations": [{"key": "a"}],
    "volumes": [{"name": "tmp", "emptyDir": {}}],
}


@pytest.mark.parametrize(
    ("patch", "path", "expected"),
    [
        ({"nodeSelector": {"zone": "z"}}, "nodeSelector", {"pool": "gpu", "zone": "z"}),
        ({"nodeSelector": None}, "nodeSelector", None),
        ({"nodeSelector": {"pool": None}}, "nodeSelector", {}),
        ({"nodeSelector": {"$patch": "replace", "zone": "z"}}, "nodeSelector", {"zone": "z"}),
        ({"nodeSelector": {"$patch": "delete"}}, "nodeSelector", None),
        ({"tolerations": [{"key": "b"}]}, "tolerations", [{"key": "b"}]),
        (
            {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}]},
            "volumes",
            [{"name": "tmp", "emptyDir": {}}, {"name": "data", "persistentVolumeClaim": {"claimName": "c"}}],
        ),
        ({"volumes": [{"name": "tmp", "$patch": "delete"}]}, "volumes", []),
        ({"initContainers": [{"name": "i", "image": "x"}]}, "initContainers", [{"name": "i", "image": "x"}]),
    ],
)
def test_merging(patch: dict[str, Any], path: str, expected: Any) -> None:
    before = copy.deepcopy(POD)
    assert merged(POD, patch).get(path) == expected
    assert before == POD


def test_items_are_found_by_their_names_at_any_depth() -> None:
    patch = {"containers": [{"name": "a", "env": [{"name": "Y", "value": "3"}, {"name": "Z", "value": "4"}]}]}
    first, second = merged(POD, patch)["containers"]
    assert [(each["name"], each["value"]) for each in first["env"]] == [("X", "1"), ("Y", "3"), ("Z", "4")]
    assert first["args"] == ["1", "2"] and second == {"name": "b"}


def test_an_item_without_its_key_is_refused() -> None:
    with pytest.raises(ValueError, match="each item of volumeMounts needs mountPath"):
        merged({"volumeMounts": []}, {"volumeMounts": [{"name": "data"}]})
