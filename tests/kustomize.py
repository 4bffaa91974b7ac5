"""As much of kustomize as k8s/ makes use of: resources, components, JSON patches by kind, images.

kubectl is not on every machine; a test holds this to it where it is.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

KNOWN = {"apiVersion", "kind", "resources", "components", "patches", "images"}


def build(folder: Path) -> list[dict[str, Any]]:
    """The objects that the kustomization in `folder` makes."""
    return _build(folder, [])


def _build(folder: Path, objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    tree = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert set(tree) <= KNOWN, set(tree) - KNOWN
    for name in tree.get("resources", []):
        path = folder / name
        objects = objects + (build(path) if path.is_dir() else list(yaml.safe_load_all(path.read_text())))
    for name in tree.get("components", []):
        assert yaml.safe_load((folder / name / "kustomization.yaml").read_text())["kind"] == "Component"
        objects = _build(folder / name, objects)
    objects = copy.deepcopy(objects)
    for patch in tree.get("patches", []):
        targets = [each for each in objects if each["kind"] == patch["target"]["kind"]]
        assert targets, f"{folder}: no {patch['target']['kind']}"
        for each in targets:
            for operation in yaml.safe_load(patch["patch"]):
                _apply(each, operation)
    for image in tree.get("images", []):
        _rename(objects, image)
    return objects


def _apply(target: Any, operation: dict[str, Any]) -> None:
    *path, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
    for part in path:
        target = target[int(part) if isinstance(target, list) else part]
    value = copy.deepcopy(operation["value"])
    assert operation["op"] in ("add", "replace")
    if isinstance(target, list):
        assert (operation["op"], last) == ("add", "-")
        target.append(value)
    else:
        assert operation["op"] == "add" or last in target, f"nothing to replace at {operation['path']}"
        target[last] = value


def _rename(tree: Any, image: dict[str, str]) -> None:
    if isinstance(tree, list):
        for each in tree:
            _rename(each, image)
    elif isinstance(tree, dict):
        for container in tree["containers"] if isinstance(tree.get("containers"), list) else []:
            name, _, tag = container["image"].partition(":")
            if name == image["name"]:
                container["image"] = f"{image.get('newName', name)}:{image.get('newTag', tag)}"
        for each in tree.values():
            _rename(each, image)
