"""What makes two configs the same run: the keys marked identity.

Called when a run begins (they are written into its folder and its checkpoints) and when it goes on (a changed one is
refused with both values).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from shardline.components.common.config.fields import Role
from shardline.components.common.config.schema import RunConfig
from shardline.components.common.errors import ConfigError


def identity_of(config: RunConfig) -> dict[str, Any]:
    """The identity keys of `config`, by dotted path."""
    return {path: value for path, role, value in _leaves(config, "") if role is Role.IDENTITY}


def identity_hash(config: RunConfig) -> str:
    """A hash of the identity keys: 16 hexadecimal digits."""
    text = json.dumps(identity_of(config), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def check_resume(before: RunConfig, now: RunConfig, *, sources: dict[str, str] | None = None) -> None:
    """Refuse to go on with a run under a config that makes it another run.

    Raises:
        ConfigError: with a message for each key that may not change so, naming both values.
    """
    old = {path: (role, value) for path, role, value in _leaves(before, "")}
    problems = []
    for path, role, value in _leaves(now, ""):
        was = old.get(path, (role, value))[1]
        if role is Role.IDENTITY and value != was:
            rule = f"this run began with {json.dumps(was)}; set it back, or give the new run another name"
            place = _nearest(path, sources or {})
            problems.append(f"{place}{path} = {json.dumps(value)}: {rule}")
    if problems:
        raise ConfigError(problems)


def _nearest(path: str, sources: dict[str, str]) -> str:
    while path:
        if path in sources:
            return f"{sources[path]}: "
        path = path.rpartition(".")[0]
    return ""


def _leaves(section: BaseModel, prefix: str) -> Iterator[tuple[str, Role, Any]]:
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from _leaves(value, f"{prefix}{name}.")
        elif isinstance(value, dict) and any(isinstance(item, BaseModel) for item in value.values()):
            for key, item in value.items():
                # What is appended leaves all there is as it was; the data set sees to that.
                if not getattr(item, "appended", False):
                    yield from _leaves(item, f"{prefix}{name}.{key}.")
        else:
            extra = field.json_schema_extra
            role = extra["x-role"] if isinstance(extra, dict) else Role.FREE.value
            yield f"{prefix}{name}", Role(str(role)), value
