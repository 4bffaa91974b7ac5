"""The config of a run that begins from another's: that one's, with what is to be different.

Called by the commands that make such a run. A message names the file, or `--set`, that a wrong key came from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from shardline.components.common.config.load import (
    Loaded,
    apply_override,
    check_rules,
    dump,
    read_tree,
    text_of,
    validate,
)
from shardline.components.common.config.schema import RunConfig


def derive(
    base: RunConfig,
    *,
    source: str,
    overlay: str | None = None,
    overrides: Iterable[str] = (),
    root: str | None = None,
    settle: Callable[[RunConfig], RunConfig] = lambda config: config,
) -> Loaded:
    """`base` with other values.

    Args:
        source: what messages call it.
        overlay: the path of a YAML file with keys that replace those of `base`, mapping by mapping.
        overrides: as `--set` has them; they come last.
        root: the storage root that is given by `--root` or SHARDLINE_ROOT.
        settle: makes of the outcome what the rules between keys are then applied to.

    Raises:
        UserError: the file cannot be read.
        ConfigError: a key is wrong.
    """
    tree, _ = read_tree(dump(base), source)
    sources: dict[str, str] = {}
    if overlay is not None:
        values, found = read_tree(text_of(overlay), overlay)
        _lay_over(tree, values)
        sources.update(found)
    if root is not None:
        tree["storage"], sources["storage"] = root, "--root"
    for override in overrides:
        apply_override(tree, sources, override)
    config = settle(validate(tree, sources, source))
    check_rules(config, sources=sources, source=source)
    return Loaded(config, sources, source)


def _lay_over(tree: dict[str, Any], values: dict[str, Any]) -> None:
    for key, value in values.items():
        there = tree.get(key)
        if isinstance(there, dict) and isinstance(value, dict):
            _lay_over(there, value)
        else:
            tree[key] = value
