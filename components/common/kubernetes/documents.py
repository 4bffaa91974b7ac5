"""Manifests as YAML documents, for `kubectl apply -f -` and for the files under k8s/. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

from shardline.components.common.kubernetes.objects import Manifest


class _Dumper(yaml.SafeDumper):
    """Every value written out, and a text of several lines as it is, such as the config in its ConfigMap."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def to_yaml(manifests: Iterable[Manifest]) -> str:
    """`manifests` as a stream of YAML documents; the same ones always give the same text."""
    return yaml.dump_all(manifests, Dumper=_Dumper, sort_keys=False, allow_unicode=True, explicit_start=True, width=120)
