"""The frame of a pipeline component's body: how it begins, how it fails, and what it hands on.

Called by the functions in each step's `component.py`, inside the container (or the local process) of one pipeline task.
An artifact here is anything with a `path` and a `metadata` mapping, as KFP's are; KFP itself is not imported.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, Protocol

from shardline.components.common import config as configs
from shardline.components.common import firing
from shardline.components.common.config import Loaded, RunConfig
from shardline.components.common.errors import ShardlineError, Stopped
from shardline.components.common.machine import without_torch
from shardline.components.common.processes import PARENT_VARIABLE, die_with_parent, raise_on_signals
from shardline.components.common.runfolder import CONFIG_FILE, run_storage
from shardline.components.common.runfolder import read_config as read_run_config
from shardline.components.common.streams import jsonable


class Artifact(Protocol):
    """What is used of a KFP artifact."""

    metadata: dict[str, Any]

    @property
    def path(self) -> str: ...


@contextlib.contextmanager
def running() -> Iterator[None]:
    """Run the block as a pipeline task: in order on a signal, with one message and the right exit code on a mistake.

    Raises:
        SystemExit: with the exit code of the ShardlineError or the signal that ended the block, or of what is lacking
            when torch is missing.
    """
    if PARENT_VARIABLE in os.environ:
        die_with_parent()
    raise_on_signals()
    try:
        yield
    except (ShardlineError, Stopped) as error:
        _exit(error)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        _exit(without_torch())


def _exit(error: ShardlineError | Stopped) -> NoReturn:
    print(f"error: {error}", file=sys.stderr, flush=True)
    raise SystemExit(error.exit_code) from None


def parse_config(text: str, *, scheduled: bool = False, due: str = "") -> RunConfig:
    """The run config in the pipeline's parameter. The storage root is the one it names, whatever the environment.

    Args:
        scheduled: whether it is the config of a schedule, of which this is the run that was due at `due`.
    """
    config = _parse(text).config
    return firing.at(config, firing.parse_moment(due)) if scheduled else config


def read_config(artifact: Artifact) -> RunConfig:
    """The run config that an earlier task has handed on."""
    return load_config(artifact).config


def load_config(artifact: Artifact) -> Loaded:
    """As `read_config`, with where each key comes from."""
    return _parse(Path(artifact.path).read_text(encoding="utf-8"))


def _parse(text: str) -> Loaded:
    return configs.parse(text, source="the pipeline's config", ignore_environment=True)


def adopted_config(config: RunConfig) -> RunConfig | None:
    """The config with which the run of `config` has begun, or None when there is no such run."""
    run = run_storage(config)
    if not run.exists(CONFIG_FILE):
        return None
    return read_run_config(run).model_copy(update={"storage": config.storage})


def write_text(artifact: Artifact, text: str) -> None:
    """Make `text` the artifact's content, and say it in the task's log."""
    print(text, file=sys.stderr, flush=True)
    Path(artifact.path).write_text(text, encoding="utf-8")


def write_config(artifact: Artifact, config: RunConfig) -> None:
    """Hand `config` on to later tasks."""
    Path(artifact.path).write_text(configs.dump(config), encoding="utf-8")
    artifact.metadata.update(run=config.run, storage=config.storage)


def publish(artifact: Artifact, content: Mapping[str, Any], **metadata: Any) -> None:
    """Write `content` as the artifact's JSON; its plain values become metadata too, which the Kubeflow UI shows."""
    value = {**jsonable(content), **jsonable(metadata)}
    Path(artifact.path).write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    artifact.metadata.update({key: item for key, item in value.items() if isinstance(item, str | int | float)})


def copy_report(artifact: Artifact, config: RunConfig, path: str) -> None:
    """Make the file `path` of the run folder the artifact's content."""
    run = run_storage(config)
    Path(artifact.path).write_bytes(run.read(path))
    artifact.metadata["url"] = run.url_of(path)


def finite_numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among `values` that KFP takes as metrics: it fails a task for a NaN."""
    return {
        key: float(value)
        for key, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
