"""Work on numbered units, in this process or in as many as asked for. Called by the step.

A worker process is a fresh interpreter that is given the job once, ignores the terminal's interrupt (the parent
decides), and ends with the parent. The job reaches it in a file of the parent's: multiprocessing would write it to a
pipe, and wait for ever where a worker is killed before it has read more than a pipe holds. Errors of a task leave as
they are; `PeerLost` when a worker was killed.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

import pyarrow as pa

from shardline.components.common.errors import PeerLost
from shardline.components.common.processes import PARENT_VARIABLE, child_environment, die_with_parent
from shardline.components.common.scratch import scratch_folder, told

Job = TypeVar("Job")
Result = TypeVar("Result")

_HINT = "if memory ran out, lower sharding.workers; then run it again: it goes on where it was"


class Pool(Generic[Job]):
    """Runs tasks `task(job, number)`. One worker means this process."""

    def __init__(self, job: Job, *, workers: int) -> None:
        self._job, self._workers = job, workers
        self._executor: ProcessPoolExecutor | None = None
        self._scratch = contextlib.ExitStack()

    def __enter__(self) -> Pool[Job]:
        if self._workers > 1:
            parent = child_environment()[PARENT_VARIABLE]
            with told(), contextlib.ExitStack() as scratch:
                path = scratch.enter_context(scratch_folder()) / "job"
                path.write_bytes(pickle.dumps(self._job))
                self._scratch = scratch.pop_all()
            self._executor = ProcessPoolExecutor(
                self._workers, multiprocessing.get_context("spawn"), initializer=_begin, initargs=(path, parent)
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._executor is None:
            return
        if kind is not None:
            # What still runs is of no use, and its results may be half a minute away.
            for process in list((getattr(self._executor, "_processes", None) or {}).values()):
                process.terminate()
        self._executor.shutdown(wait=True, cancel_futures=True)
        self._scratch.close()

    def map(self, task: Callable[[Job, int], Result], numbers: Sequence[int]) -> Iterator[tuple[int, Result]]:
        """The results with their numbers, in the order in which they are done."""
        if self._executor is None:
            for number in numbers:
                yield number, task(self._job, number)
            return
        try:
            futures = {self._submit(self._executor, task, number): number for number in numbers}
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool as error:
            raise PeerLost("a sharding worker was killed", hint=_HINT) from error

    @staticmethod
    def _submit(executor: ProcessPoolExecutor, task: Callable[[Job, int], Result], number: int) -> Future[Result]:
        try:
            return executor.submit(_call, task, number)
        except (OSError, ValueError) as error:
            # Submitting starts workers. Where one of them dies meanwhile, the executor closes the pipes under it.
            raise PeerLost(f"a sharding worker could not be started: {error}", hint=_HINT) from error


_given: Any = None


def _begin(job: Path, parent: str) -> None:
    global _given
    os.environ[PARENT_VARIABLE] = parent
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # There is a worker for each core already.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    pa.set_cpu_count(1)
    _given = pickle.loads(job.read_bytes())


def _call(task: Callable[[Any, int], Result], number: int) -> Result:
    return task(_given, number)
