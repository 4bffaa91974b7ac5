"""Reading a run config: where each key came from, and one message for each thing that is wrong.

Called by the command line and by each pipeline step. A message reads
`SOURCE: KEY = VALUE: what would be right`, so that a person can go straight to the place.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from shardline.components.common.config.rules import broken_rules
from shardline.components.common.config.schema import RunConfig
from shardline.components.common.errors import ConfigError, UserError, from_os_error

ROOT_VARIABLE = "SHARDLINE_ROOT"


@dataclass(frozen=True)
class Loaded:
    """A valid config, the place each of its keys was set at, and what messages call the config as a whole."""

    config: RunConfig
    sources: dict[str, str]
    source: str

    def problem(self, path: str, rule: str) -> ConfigError:
        """The error for a key that is valid by itself but not for what is asked; `rule` says what would be right."""
        value = _value_at(self.config.model_dump(mode="json"), path)
        return ConfigError([_line(path, rule, value, self.sources, self.source)])


def load(path: str, *, overrides: Iterable[str] = (), root: str | None = None) -> Loaded:
    """Read the file at `path`, apply `--set` overrides and the storage root, validate.

    Args:
        overrides: texts `dotted.key=value`; the value is read as YAML.
        root: the storage root given by `--root`; it wins over SHARDLINE_ROOT, which wins over the file.

    Raises:
        UserError: the file is not there, is a folder or is not UTF-8.
        ConfigError: it is not YAML, or a key is wrong.
    """
    return parse(text_of(path), source=path, overrides=overrides, root=root)


def text_of(path: str) -> str:
    """What is in the file at `path`.

    Raises:
        UserError: it is not there, is a folder or is not UTF-8.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError("is not a UTF-8 text file", where=path, hint="pass the run config, a YAML file") from error
    except IsADirectoryError as error:
        raise UserError("is a folder", where=path, hint="name a YAML file") from error
    except OSError as error:
        raise from_os_error(error, path) from error


def parse(
    text: str,
    *,
    source: str,
    overrides: Iterable[str] = (),
    root: str | None = None,
    ignore_environment: bool = False,
) -> Loaded:
    """As `load`, from the text itself; `source` is what messages call it.

    Args:
        ignore_environment: take the storage root from the text even where SHARDLINE_ROOT is set.
    """
    tree, sources = read_tree(text, source)
    if not ignore_environment:
        _apply_root(tree, sources, root)
    for override in overrides:
        apply_override(tree, sources, override)
    config = validate(tree, sources, source)
    check_rules(config, sources=sources, source=source)
    return Loaded(config, sources, source)


def validate(tree: dict[str, Any], sources: dict[str, str], source: str) -> RunConfig:
    """The config of what was read, each key valid by itself.

    Raises:
        ConfigError: with a message for each key that is wrong.
    """
    try:
        return RunConfig.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(list(dict.fromkeys(_message(e, tree, sources, source) for e in error.errors()))) from None


def check_rules(config: RunConfig, *, sources: dict[str, str], source: str) -> None:
    """Apply the rules that tie several keys together.

    Raises:
        ConfigError: with a message for each key that breaks one.
    """
    values = config.model_dump(mode="json")
    problems = [
        _line(problem.path, problem.rule, _value_at(values, problem.path), sources, source)
        for problem in broken_rules(config)
    ]
    if problems:
        raise ConfigError(problems)


def dump(config: RunConfig) -> str:
    """`config` as YAML with every key written out; `parse` reads it back to the same config."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def dump_line(config: RunConfig) -> str:
    """`config` as JSON in one line, for a pipeline parameter; `parse` reads it back to the same config."""
    text = json.dumps(config.model_dump(mode="json"), ensure_ascii=False)
    # JSON allows these as they are, YAML takes some for line breaks and refuses the others.
    return _NOT_YAML.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


_NOT_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


class _Loader(yaml.SafeLoader):
    """YAML in which `3e-4` is a number, as YAML 1.2 and JSON have it; PyYAML wants `3.0e-4`."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def read_tree(text: str, source: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The mapping in a YAML text, and where each of its keys is.

    Raises:
        ConfigError: it is not YAML, or no mapping.
    """
    try:
        node = yaml.compose(text, Loader=_Loader)
        tree = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError) as error:  # a date that is none is a ValueError
        mark = getattr(error, "problem_mark", None)
        place = f"{source}:{mark.line + 1}" if mark else source
        raise ConfigError([f"{place}: not valid YAML: {getattr(error, 'problem', error)}"]) from None
    if not isinstance(tree, dict):
        raise ConfigError([f"{source}: should be a mapping of keys such as run, storage, corpus and training"])
    sources: dict[str, str] = {}
    _lines(node, "", source, sources)
    return tree, sources


def _lines(node: yaml.Node | None, prefix: str, source: str, sources: dict[str, str]) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            path = f"{prefix}{key.value}"
            place = f"{source}:{key.start_mark.line + 1}"
            # PyYAML silently lets the last of two equal keys win; a person who wrote both should be told.
            if path in sources:
                raise ConfigError([f"{place}: {path}: is set twice (first at {sources[path]})"])
            sources[path] = place
            _lines(value, f"{path}.", source, sources)


def _apply_root(tree: dict[str, Any], sources: dict[str, str], root: str | None) -> None:
    if root is not None:
        tree["storage"], sources["storage"] = root, "--root"
    elif value := os.environ.get(ROOT_VARIABLE):
        tree["storage"], sources["storage"] = value, ROOT_VARIABLE


def apply_override(tree: dict[str, Any], sources: dict[str, str], override: str) -> None:
    """Replace the key in `tree` that a `--set` text names.

    Raises:
        ConfigError: it is none, or its key lies below something that is not a mapping.
    """
    key, separator, value = override.partition("=")
    parts = key.strip().split(".")
    if not separator or not all(parts):
        raise ConfigError([f"--set {override}: should be KEY=VALUE, such as training.steps=200"])
    node = tree
    for depth, part in enumerate(parts[:-1]):
        child = node.get(part)
        # A shorthand (corpus: URL, layout: auto) gives way to the mapping that the override asks for.
        if child is None or child == "auto":
            child = node[part] = {}
            sources.setdefault(".".join(parts[: depth + 1]), "--set")
        elif part == "corpus" and isinstance(child, str | list):
            child = node[part] = {"urls": child}
        if not isinstance(child, dict):
            raise ConfigError([f"--set {override}: {'.'.join(parts[: depth + 1])} is not a mapping"])
        node = child
    try:
        parsed = yaml.load(value, Loader=_Loader)
    except (yaml.YAMLError, ValueError):
        raise ConfigError([f"--set {override}: the value is not valid YAML"]) from None
    # `stdlib:` is a mapping in YAML; whoever means one on a command line writes braces.
    node[parts[-1]] = value if isinstance(parsed, dict) and not value.lstrip().startswith("{") else parsed
    sources[".".join(parts)] = "--set"


def _message(error: ErrorDetails, tree: dict[str, Any], sources: dict[str, str], source: str) -> str:
    path = ".".join(str(part) for part in error["loc"] if _is_key(part))
    value = _value_at(tree, path)
    kind, context = error["type"], error.get("ctx") or {}
    if kind == "extra_forbidden":
        return _line(path, "unknown key" + _suggestion(path), _ABSENT, sources, source)
    if kind == "missing":
        return _line(path, f"is missing{_needed(path)}", _ABSENT, sources, source)
    if kind == "value_error":
        return _line(path, str(context.get("error", error["msg"])), value, sources, source)
    if kind == "model_type":
        return _line(path, f"should be a mapping of keys. {_described(path)}".rstrip(), value, sources, source)
    if kind == "literal_error":
        allowed = str(context["expected"])
        return _line(path, f"should be {allowed}", value, sources, source)
    if kind == "string_pattern_mismatch":
        return _line(path, f"has a form that is not allowed. {_described(path)}".rstrip(), value, sources, source)
    text = error["msg"][0].lower() + error["msg"][1:]
    return _line(path, text.replace("input should", "should"), value, sources, source)


def _is_key(part: object) -> bool:
    # pydantic puts the branch of a union ("int", "literal['auto']") into the location; it is no key of ours.
    return isinstance(part, int) or (
        isinstance(part, str) and part.isidentifier() and part not in {"int", "str", "float"}
    )


class _Absent:
    pass


_ABSENT = _Absent()


def _value_at(tree: Any, path: str) -> Any:
    for part in path.split(".") if path else []:
        if isinstance(tree, dict) and part in tree:
            tree = tree[part]
        elif isinstance(tree, list) and part.isdigit() and int(part) < len(tree):
            tree = tree[int(part)]
        else:
            return _ABSENT
    return tree


def _line(path: str, rule: str, value: Any, sources: dict[str, str], source: str) -> str:
    place = source
    known = path
    while known:
        if known in sources:
            place = sources[known]
            break
        known = known.rpartition(".")[0]
    shown = "" if isinstance(value, _Absent | dict) else f" = {_short(value)}"
    return f"{place}: {path}{shown}: {rule}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else text[:77] + "..."


def _fields(section: type[BaseModel]) -> dict[str, FieldInfo]:
    """A section's fields by their keys: some are words of Python's own, which no attribute can be called."""
    return {field.alias or name: field for name, field in section.model_fields.items()}


def _section(path: str) -> type[BaseModel] | None:
    section: Any = RunConfig
    for part in path.split(".") if path else []:
        field = _fields(section).get(part)
        section = getattr(field, "annotation", None)
        if not (isinstance(section, type) and issubclass(section, BaseModel)):
            return None
    return section  # type: ignore[no-any-return]


def _field(path: str) -> FieldInfo | None:
    parent, _, name = path.rpartition(".")
    section = _section(parent)
    return _fields(section).get(name) if section else None


def _described(path: str) -> str:
    """The key's description in the schema."""
    field = _field(path)
    return (field.description or "").replace("\n", " ") if field else ""


def _needed(path: str) -> str:
    """What to put where a key is missing: its only value, what it means, or the keys it must have."""
    field, section = _field(path), _section(path)
    if field and get_origin(field.annotation) is Literal:
        return f"; set {path}: {' or '.join(map(str, get_args(field.annotation)))}"
    if described := _described(path):
        return f". {described}"
    required = [name for name, each in _fields(section).items() if each.is_required()] if section else []
    return f"; it must have {', '.join(required)}" if required else ""


def _suggestion(path: str) -> str:
    parent, _, name = path.rpartition(".")
    everywhere = list(_all_keys(RunConfig, ""))
    here = [key.rpartition(".")[2] for key in everywhere if key.rpartition(".")[0] == parent]
    near = [f"{parent}.{key}" if parent else key for key in difflib.get_close_matches(name, here, n=3)]
    near += [key for key in everywhere if key.rpartition(".")[2] == name and key not in near]
    return f"; did you mean {' or '.join(near[:3])}?" if near else ""


def _all_keys(section: type[BaseModel], prefix: str) -> Iterable[str]:
    for name, field in _fields(section).items():
        yield prefix + name
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _all_keys(field.annotation, f"{prefix}{name}.")
