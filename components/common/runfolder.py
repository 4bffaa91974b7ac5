"""The run folder: where each thing of a run lies, and what makes a run go on instead of starting anew."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

from shardline.components.common import config as configs
from shardline.components.common.config import RunConfig
from shardline.components.common.config.identity import check_resume
from shardline.components.common.errors import ShardlineError, UserError, to_record
from shardline.components.common.storage import Storage
from shardline.components.common.streams import jsonable, now

CONFIG_FILE = "config.yaml"
STATUS_FILE = "status.json"
DONE_FILE = "done.json"
REPORT_FILE = "report.html"
DATASET_FILE = "dataset.json"


def run_storage(config: RunConfig) -> Storage:
    """The folder of `config`'s run."""
    return Storage(config.storage).at(f"runs/{config.run}")


def find_run(run: str, *, root: str | None) -> Storage:
    """The run folder that RUN means in a command: a URL or path, or a name under the storage root.

    Raises:
        UserError: there is no run.
    """
    storage = Storage(run) if "/" in run or root is None else Storage(root).at(f"runs/{run}")
    if not storage.exists(CONFIG_FILE):
        raise UserError(
            "no run is here", where=storage.url, hint="pass the run's folder, or its name with --root or SHARDLINE_ROOT"
        )
    return storage


def read_config(run: Storage) -> RunConfig:
    """The config that the run began with, as last extended."""
    return configs.parse(run.read(CONFIG_FILE).decode(), source=run.url_of(CONFIG_FILE), ignore_environment=True).config


def adopt_config(run: Storage, config: RunConfig, *, sources: dict[str, str] | None = None) -> bool:
    """Write `config` into the run folder; True when the run had begun before.

    Raises:
        ConfigError: the run began under another identity.
    """
    text = configs.dump(config).encode()
    if not run.exists(CONFIG_FILE):
        run.write(CONFIG_FILE, text)
        return False
    check_resume(read_config(run), config, sources=sources)
    if run.read(CONFIG_FILE) != text:
        run.delete(DONE_FILE)  # what was done was another config's
        run.write(CONFIG_FILE, text)
    return True


def write_json(run: Storage, path: str, value: Any) -> None:
    run.write(path, (json.dumps(jsonable(value), indent=1, ensure_ascii=False) + "\n").encode())


def read_json(run: Storage, path: str) -> Any:
    """The JSON file at `path`, or None when it is not there."""
    try:
        return json.loads(run.read(path))
    except FileNotFoundError:
        return None


def write_status(run: Storage, *, phase: str, generation: int, step: int, **numbers: Any) -> None:
    """Say how far the run is: `phase` is the pipeline step, `step` the optimizer step or what the phase counts in."""
    write_json(
        run, STATUS_FILE, {"phase": phase, "generation": generation, "step": step, "heartbeat": now(), **numbers}
    )


class Throttle:
    """Says when a status is due: at once, and then at most twice a second."""

    def __init__(self, seconds: float = 0.5) -> None:
        self._seconds = seconds
        self._due = 0.0

    def is_due(self) -> bool:
        if time.monotonic() < self._due:
            return False
        self._due = time.monotonic() + self._seconds
        return True


def error_file(step: str) -> str:
    return f"errors/{step}.json"


@contextlib.contextmanager
def recording_errors(run: Storage, step: str) -> Iterator[None]:
    """Leave the error that ends the block in the run folder, for the process that started this step."""
    run.delete(error_file(step))
    try:
        yield
    except BaseException as error:
        # The first error is the one to show: storage that is gone too must not hide it.
        with contextlib.suppress(ShardlineError):
            write_json(run, error_file(step), to_record(error))
        raise
