"""The arguments that several commands share, and the one way from a CONFIG argument to a config."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from shardline.components.common.config import Loaded
    from shardline.components.common.storage import Storage

ConfigPath = Annotated[str, typer.Argument(metavar="CONFIG", help="The run config, a YAML file.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Replace a key, such as training.steps=200. Repeatable."),
]
Run = Annotated[
    str,
    typer.Argument(metavar="RUN", help="The run's folder, or its name below the storage root.", show_default=False),
]
Root = Annotated[
    str | None,
    typer.Option("--root", metavar="URL", help="The storage root, instead of SHARDLINE_ROOT or the config's storage."),
]
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def found_run(run: str, root: str | None) -> Storage:
    """The folder of the run that a command is about.

    Raises:
        UserError: there is no run.
    """
    import os

    from shardline.components.common.config.load import ROOT_VARIABLE
    from shardline.components.common.runfolder import find_run

    return find_run(run, root=root or os.environ.get(ROOT_VARIABLE))


def read_config(path: str, *, overrides: list[str] | None, root: str | None) -> Loaded:
    """The config that a command runs with: validated, its paths absolute.

    Raises:
        UserError: the file cannot be read.
        ConfigError: a key is wrong.
    """
    from dataclasses import replace

    from shardline.components.common.config import absolute, load

    loaded = load(path, overrides=overrides or (), root=root)
    return replace(loaded, config=absolute(loaded.config))


def seconds_of(text: str, option: str) -> float:
    """The seconds that a time such as 30s, 10m or 1h has."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a time, such as 30s, 10m or 1h", param_hint=option)
    return float(found[1]) * _UNITS[found[2]]
