"""The frame around every pipeline step: one writer, its events, its error left behind, no orphans.

Each step's `step.py` does its work inside `stepping`. Run again, it finds what is done and skips it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from shardline.components.common.config import RunConfig
from shardline.components.common.errors import Stopped, UserError, to_record
from shardline.components.common.events import EventLog
from shardline.components.common.owner import Lease, hold
from shardline.components.common.runfolder import (
    CONFIG_FILE,
    adopt_config,
    read_config,
    recording_errors,
    run_storage,
)
from shardline.components.common.steps import STEPS
from shardline.components.common.storage import Storage


@dataclass(frozen=True)
class StepContext:
    """What a step works with. `config` is the run's, with every key; `summary` goes into its last event."""

    config: RunConfig
    run: Storage
    lease: Lease
    generation: int
    events: EventLog
    summary: dict[str, Any] = field(default_factory=dict)


@contextlib.contextmanager
def stepping(config: RunConfig, name: str, *, sources: dict[str, str] | None = None) -> Iterator[StepContext]:
    """Run the block as the pipeline step `name` of `config`'s run.

    The first step begins a run, the others go on with one. A command that is refused leaves nothing in the run folder.

    Raises:
        UserError: there is no such run, or another live process owns it.
        ConfigError: the run began under another identity.
    """
    run = run_storage(config)
    if name != STEPS[0] and not run.exists(CONFIG_FILE):
        raise UserError("no run is here", where=run.url, hint="run `shardline shard CONFIG` first")
    with hold(run) as lease:
        adopt_config(run, config, sources=sources)
        with recording_errors(run, name), _numbered(read_config(run), run, lease, name) as context:
            yield context


@contextlib.contextmanager
def _numbered(config: RunConfig, run: Storage, lease: Lease, name: str) -> Iterator[StepContext]:
    generation = lease.next_generation()
    with EventLog(run, generation=generation, writer=name) as events:
        events.emit("step.started", {"step": name})
        context = StepContext(config, run, lease, generation, events)
        try:
            yield context
        except Stopped as error:
            events.emit("step.stopped", {"step": name}, reason=error.message)
            raise
        except BaseException as error:
            events.emit("step.failed", {"step": name, **to_record(error)}, reason=str(error))
            raise
        events.emit("step.finished", {**context.summary, "step": name})
