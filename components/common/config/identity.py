"""What makes two configs the same run: the keys marked identity.

Called when a run begins (they are written into its folder and its checkpoints) and when it goes on (a changed one is
refused with both values).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from shardline.components.common.config.fields import Role
from shardline.components.common.config.schema import RunConfig
from shardline.components.common.errors import ConfigError, UserError

_SOURCES = "corpus.sources."
#: Free keys on which the samples to come depend.
_POLICY = ("training.stages", "training.skip")


def identity_of(config: RunConfig) -> dict[str, Any]:
    """The identity keys of `config`, by dotted path."""
    return {path: value for path, role, value in _leaves(config, "") if role is Role.IDENTITY}


def identity_hash(config: RunConfig) -> str:
    """A hash of the identity keys: 16 hexadecimal digits."""
    text = json.dumps(identity_of(config), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def check_identity(config: RunConfig, keys: Mapping[str, Any], *, hash: str, where: str) -> None:
    """Refuse what belongs to a run of another identity than `config`'s.

    Args:
        keys: the identity keys that it was written under; empty where they were not kept.
        hash: their hash.
        where: its URL.

    Raises:
        UserError: naming each key that differs, with both values.
    """
    if hash == identity_hash(config):
        return
    differ = differing(config, keys) if keys else []
    if keys and not differ:
        return
    about = f": {'; '.join(differ)}" if differ else ""
    raise UserError(
        f"belongs to a run of another config{about}",
        where=where,
        hint="set it back, or give the new run another name",
    )


def differing(
    config: RunConfig, keys: Mapping[str, Any], *, but: Callable[[str], bool] = lambda path: False
) -> list[str]:
    """Each identity key in which `config` is not as `keys` say, with both values, as text.

    Args:
        keys: the identity keys of something that was written, by dotted path.
        but: says which keys may differ.
    """
    # As JSON has them: the keys come from a file.
    now = json.loads(json.dumps(identity_of(config)))
    # Sources have names of the user's own. Any other key that is not there is one that it was too early for.
    both = [path for path in dict.fromkeys([*keys, *now]) if path in keys or path.startswith(_SOURCES)]
    return [
        f"{path} is {_told(keys, path)} there and {_told(now, path)} here"
        for path in both
        if _told(keys, path) != _told(now, path) and not but(path)
    ]


def changes(before: RunConfig, now: RunConfig) -> dict[str, dict[str, Any]]:
    """What `now` does otherwise than `before`, of all that the result depends on: `before` and `now` of each key."""
    old, new = _settings(before), _settings(now)
    return {
        path: {"before": old.get(path), "now": new.get(path)}
        for path in dict.fromkeys([*old, *new])
        if old.get(path) != new.get(path)
    }


def _settings(config: RunConfig) -> dict[str, Any]:
    leaves = _leaves(config, "")
    return {path: value for path, role, value in leaves if role is not Role.FREE or path in _POLICY}


def _told(keys: Mapping[str, Any], path: str) -> str:
    return json.dumps(keys[path]) if path in keys else "not set"


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
        value, name = getattr(section, name), field.alias or name
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
            yield f"{prefix}{name}", Role(str(role)), _plain(value)


def _plain(value: Any) -> Any:
    """`value` as JSON has it, where it is a list of sections."""
    if isinstance(value, list):
        return [item.model_dump(mode="json") if isinstance(item, BaseModel) else item for item in value]
    return value
