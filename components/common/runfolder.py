"""The run folder: where each thing of a run lies, and what makes a run go on instead of starting anew."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from typing import Any

from shardline.components.common import config as configs
from shardline.components.common.config import RunConfig
from shardline.components.common.config.identity import check_resume
from shardline.components.common.errors import DamagedData, ShardlineError, Superseded, UserError, to_record
from shardline.components.common.huggingface.pretrained import resolved
from shardline.components.common.steps import STEPS
from shardline.components.common.storage import Storage
from shardline.components.common.streams import jsonable

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


def read_config(run: Storage, *, overrides: Iterable[str] = ()) -> RunConfig:
    """The config that the run began with, as last extended.

    Args:
        overrides: as `--set` has them; what is read is changed, not the file.
    """
    where = run.url_of(CONFIG_FILE)
    try:
        text = run.read(CONFIG_FILE).decode()
    except UnicodeDecodeError as error:
        raise DamagedData("is not what was written", where=where, hint="bring the run's config back") from error
    return configs.parse(text, source=where, overrides=overrides, ignore_environment=True).config


def adopt_config(run: Storage, config: RunConfig, *, sources: dict[str, str] | None = None) -> bool:
    """Write `config` into the run folder; True when the run had begun before.

    Raises:
        ConfigError: the run has a data set, and began under another identity.
    """
    begun = run.exists(CONFIG_FILE)
    text = configs.dump(as_adopted(run, config, sources=sources)).encode()
    if begun and run.read(CONFIG_FILE) == text:
        return True
    run.delete(DONE_FILE)  # what was done was another config's
    run.write(CONFIG_FILE, text)
    return begun


def as_adopted(run: Storage, config: RunConfig, *, sources: dict[str, str] | None = None) -> RunConfig:
    """`config` as the run in `run` would take it over; nothing is written.

    Where it leaves the end of the learning rate's decay open, that is the number of steps that the run began with: to
    extend a run must not bend the curve that it is on. The sizes of a model that it starts from are filled in.

    Raises:
        ConfigError: the run has a data set, and began under another identity; or a key does not fit the model.
        UserError: the model to start from is not there, or is not supported.
        DamagedData: it is not what it should be.
    """
    # Until it has a data set there is nothing that another config would not fit: a mistake can still be mended.
    before = read_config(run) if run.exists(CONFIG_FILE) and run.exists(DATASET_FILE) else None
    config = with_model(config, before=before, sources=sources)
    first = before or config
    config = _with_decay_steps(config, default=first.training.schedule.decay_steps or first.training.steps)
    if before:
        check_resume(before, config, sources=sources)
    return config


def with_model(
    config: RunConfig, *, before: RunConfig | None = None, sources: dict[str, str] | None = None
) -> RunConfig:
    """`config` with what it leaves to the model at `model.url`, see `resolved`; and the rules that wait for it."""
    if config.model.url is None:
        return config
    config = resolved(config, before=before, sources=sources)
    configs.check_rules(config, sources=sources or {}, source=f"with {config.model.url}")
    return config


def _with_decay_steps(config: RunConfig, *, default: int) -> RunConfig:
    """`config` with `training.schedule.decay_steps` filled in where it is open."""
    schedule = config.training.schedule
    schedule = schedule.model_copy(update={"decay_steps": schedule.decay_steps or default})
    training = config.training.model_copy(update={"schedule": schedule})
    return config.model_copy(update={"training": training})


def write_json(run: Storage, path: str, value: Any) -> None:
    run.write(path, (json.dumps(jsonable(value), indent=1, ensure_ascii=False) + "\n").encode())


def read_json(run: Storage, path: str) -> Any:
    """The JSON mapping in the file at `path`, or None when it is not there.

    Raises:
        DamagedData: something else is in it.
    """
    try:
        content = json.loads(run.read(path))
    except FileNotFoundError:
        return None
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise DamagedData("is not what was written", where=run.url_of(path), hint="delete it and run the command again")
    return content


def error_file(step: str) -> str:
    return f"errors/{step}.json"


@contextlib.contextmanager
def recording_errors(run: Storage, step: str) -> Iterator[None]:
    """Leave the error that ends the block in the run folder, for the process that started this step.

    A step that ends well leaves no error of its own, nor of a step before it. The report, which can be written of any
    run, says nothing of the others.
    """
    run.delete(error_file(step))
    try:
        yield
    except Superseded:
        raise  # the run is another process's now
    except BaseException as error:
        # The first error is the one to show: storage that is gone too must not hide it.
        with contextlib.suppress(ShardlineError):
            write_json(run, error_file(step), to_record(error))
        raise
    if step != STEPS[-1]:
        for before in STEPS[: STEPS.index(step)]:
            run.delete(error_file(before))
