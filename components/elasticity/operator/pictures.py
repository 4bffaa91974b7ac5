"""What the folders of runs tell, read beside the rounds: storage that is slow or away holds up no other job.

Called by `turn`. Only numbers and times come out of it, and nothing is written. Threads read; whoever asks gets the
newest picture that is complete.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from shardline.components.common.config import RunConfig
from shardline.components.common.errors import ShardlineError
from shardline.components.common.runfolder import (
    CONFIG_FILE,
    DATASET_FILE,
    DONE_FILE,
    STATUS_FILE,
    read_config,
    read_json,
)
from shardline.components.common.storage import Storage
from shardline.components.common.streams import StreamReader
from shardline.components.elasticity.budget.nodes import BadNodes
from shardline.components.elasticity.operator.facts import Job
from shardline.components.elasticity.operator.settings import Settings
from shardline.components.elasticity.operator.worth import Speeds, Worth, worth
from shardline.components.planning.choose import fits

#: Segments of the metrics that are read of each generation when a run is first looked at.
_NEWEST_SEGMENTS = 4


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A run, as its folder tells.

    Attributes:
        status, done: its status.json and done.json.
        allowed: the numbers of workers, from its job's least to its most, for which the planner has a layout; None
            while there is no data set to plan for.
        aside: the nodes that runs of its storage root do without; None while that is not known.
        worth: where more workers have not paid.
        problem: why it could not be read, the rest is then as it was.
    """

    status: dict[str, Any] | None = None
    done: dict[str, Any] | None = None
    allowed: tuple[int, ...] | None = None
    aside: tuple[str, ...] | None = None
    worth: Worth | None = None
    problem: str | None = None


class Pictures:
    """The runs of all jobs that are asked for."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._runs: dict[str, _Run] = {}

    def of(self, job: Job) -> Picture:
        """The newest picture, which is an empty one before the first; another one is taken when it is time."""
        run = self._runs.get(job.uid)
        if run is None:
            run = self._runs[job.uid] = _Run(self._settings)
        run.refresh(job, now=time.monotonic())
        return run.picture

    def keep(self, uids: Iterable[str]) -> None:
        """Forget all runs but those of the jobs `uids`."""
        there = set(uids)
        self._runs = {uid: run for uid, run in self._runs.items() if uid in there}


@dataclass
class _Run:
    settings: Settings
    picture: Picture = field(default_factory=Picture)
    _thread: threading.Thread | None = None
    _looked: float | None = None
    _metrics: StreamReader | None = None
    _events: StreamReader | None = None
    _speeds: Speeds = field(default_factory=Speeds)
    _worlds: dict[int, int] = field(default_factory=dict)
    _planned: tuple[object, tuple[int, ...]] | None = None

    def refresh(self, job: Job, *, now: float) -> None:
        if self._thread is not None and self._thread.is_alive():
            return
        if self._looked is not None and now - self._looked < self.settings.progress:
            return
        self._looked = now
        self._thread = threading.Thread(target=self._read, args=(job,), name=f"run-{job.run}", daemon=True)
        self._thread.start()

    def _read(self, job: Job) -> None:
        if job.storage is None:
            self.picture = replace(self.picture, problem="it does not say where its run is: shardline.io/storage")
            return
        try:
            root = Storage(job.storage)
            found = self._look(root.at(f"runs/{job.run}"), job)
            self.picture = replace(found, aside=tuple(BadNodes(root).names()))
        except ShardlineError as error:
            self.picture = replace(self.picture, problem=str(error))

    def _look(self, run: Storage, job: Job) -> Picture:
        status, done = read_json(run, STATUS_FILE), read_json(run, DONE_FILE)
        dataset = read_json(run, DATASET_FILE)
        if not dataset or "vocab" not in dataset or not run.exists(CONFIG_FILE):
            return Picture(status=status, done=done)
        config = read_config(run)
        return Picture(
            status=status,
            done=done,
            allowed=self._allowed(config, job, vocab=int(dataset["vocab"])),
            worth=self._worth(run, processes=config.kubernetes.workers.processes_a_pod),
        )

    def _allowed(self, config: RunConfig, job: Job, *, vocab: int) -> tuple[int, ...]:
        asked = (config, job.least, job.most, vocab)
        if self._planned is None or self._planned[0] != asked:
            each = config.kubernetes.workers.processes_a_pod
            numbers = range(max(1, job.least), job.most + 1)
            allowed = tuple(number for number in numbers if fits(config, world=number * each, vocab=vocab))
            self._planned = (asked, allowed)
        return self._planned[1]

    def _worth(self, run: Storage, *, processes: int) -> Worth | None:
        self._metrics = self._metrics or StreamReader(run.at("metrics"), newest=_NEWEST_SEGMENTS)
        self._events = self._events or StreamReader(run.at("events"))
        for record in self._events.new():
            if record["name"] == "generation.started":
                self._worlds[int(record["generation"])] = int(record["data"]["world"])
        self._speeds.add(self._metrics.new())
        return worth(self._speeds.by_workers(self._worlds, processes=processes), gain=self.settings.gain)
