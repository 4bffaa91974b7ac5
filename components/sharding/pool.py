"""Work on numbered units, in this process or in as many as asked for. Called by the step.

A worker process is a fresh interpreter that is given the job once, ignores the terminal's interrupt (the parent
decides), and ends with the parent. Errors of a task leave as they are; `PeerLost` when a worker was killed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from types import TracebackType
from typing import Any, Generic, TypeVar

import pyarrow as pa

from shardline.components.common.errors import PeerLost
from shardline.components.common.processes import PARENT_VARIABLE, child_environment, die_with_parent

Job = TypeVar("Job")
Result = TypeVar("Result")


class Pool(Generic[Job]):
    """Runs tasks `task(job, number)`. One worker means this process."""

    def __init__(self, job: Job, *, workers: int) -> None:
        self._job = job
        self._executor: ProcessPoolExecutor | None = None
        if workers > 1:
            parent = child_environment()[PARENT_VARIABLE]
            self._executor = ProcessPoolExecutor(
                workers, multiprocessing.get_context("spawn"), initializer=_begin, initargs=(job, parent)
            )

    def __enter__(self) -> Pool[Job]:
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

    def map(self, task: Callable[[Job, int], Result], numbers: Sequence[int]) -> Iterator[tuple[int, Result]]:
        """The results with their numbers, in the order in which they are done."""
        if self._executor is None:
            for number in numbers:
                yield number, task(self._job, number)
            return
        futures: dict[Future[Result], int] = {self._executor.submit(_call, task, number): number for number in numbers}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool as error:
            raise PeerLost(
                "a sharding worker was killed",
                hint="if memory ran out, lower sharding.workers; then run it again: it goes on where it was",
            ) from error


_given: Any = None


def _begin(job: Any, parent: str) -> None:
    global _given
    os.environ[PARENT_VARIABLE] = parent
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # There is a worker for each core already.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    pa.set_cpu_count(1)
    _given = job


def _call(task: Callable[[Any, int], Result], number: int) -> Result:
    return task(_given, number)
