"""Saving a run's state, together with all ranks, while training goes on.

Called by `training.saves`; a `Target` is where a save goes to. The step loop waits only while the values that this rank
writes are copied into host memory, which is made once and used again. A thread of each rank writes and hashes its file;
rank 0's waits for all of them and commits. One save is under way at a time. With `background` off the caller does the
same work itself, from the tensors as they are.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from shardline.components.common.errors import EXIT_BUG, ShardlineError, from_record, to_record
from shardline.components.common.streams import now
from shardline.components.common.workers import WorkerContext
from shardline.components.training.checkpoint.meeting import GivenUp, Meeting
from shardline.components.training.checkpoint.planning import plan_save
from shardline.components.training.checkpoint.record import CheckpointRecord
from shardline.components.training.checkpoint.store import FileRecord, write_bytes, write_tensors
from shardline.components.training.checkpoint.targets import DurableTarget, Target
from shardline.components.training.dtensors import local_of

#: How long a process that ends waits for its thread to notice.
_LEAVING_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What a checkpoint holds beside tensors; see `CheckpointRecord`."""

    step: int
    state: dict[str, Any]
    identity: str
    identity_keys: dict[str, Any]
    layout: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A committed checkpoint.

    Attributes:
        seconds: from when it was due to its commit.
        blocked: those of them for which training stood still, on rank 0.
    """

    record: CheckpointRecord
    seconds: float
    blocked: float


@dataclass(kw_only=True)
class _Job:
    """A save under way; `blocked` is how long it has kept the caller, all of it unless set."""

    contents: Contents
    target: Target
    meeting: Meeting
    began: float
    blocked: float = float("inf")


class Saver:
    """The saves of one rank in one generation. Made, used and closed by all ranks alike.

    Args:
        tensors: gives the state to save; its names, shapes and places stay the same.
        background: write in a thread.
        before_commit: called by every rank's thread; what it puts out is there once the checkpoint is.
        on_saved: called by rank 0's thread after each commit of a checkpoint.
    """

    def __init__(
        self,
        context: WorkerContext,
        *,
        tensors: Callable[[], Mapping[str, Tensor]],
        background: bool,
        before_commit: Callable[[], None] = lambda: None,
        on_saved: Callable[[Saved], None] = lambda saved: None,
    ) -> None:
        self._context = context
        self._tensors = tensors
        self._before_commit = before_commit
        self._on_saved = on_saved
        self._store = context.store if context.world > 1 else dist.HashStore()
        prefix = f"g{context.generation:06d}"
        self._plan = plan_save(tensors(), prefix=prefix, rank=context.rank, world=context.world)
        self._buffers = self._host_memory() if background else None
        self._durable = DurableTarget(context)
        self._number = 0
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._given_up = threading.Event()

    def _host_memory(self) -> list[Tensor]:
        tensors = self._tensors()
        # Zeros, not `empty`: the pages are to be there before the first save, not at it.
        return [
            torch.zeros(local.shape, dtype=local.dtype, pin_memory=local.is_cuda)
            for local in (local_of(tensors[name]) for name in self._plan.names)
        ]

    @property
    def busy(self) -> bool:
        """Whether a save is under way."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, contents: Contents, *, target: Target | None = None, since: float | None = None) -> None:
        """Begin to save the state as it is now; without `background`, do all of it. `wait` tells how it ended.

        Args:
            target: where to; the run folder unless given.
            since: when it was due, by `time.perf_counter`.

        Raises:
            RuntimeError: the save before was not waited for.
        """
        if self._thread is not None or self._error is not None:
            raise RuntimeError("the save before was not waited for")
        began = time.perf_counter() if since is None else since
        tensors = self._tensors()
        values = [local_of(tensors[name]) for name in self._plan.names]
        meeting = Meeting(
            self._store,
            number=self._number,
            rank=self._context.rank,
            world=self._context.world,
            silence=self._context.timeout,
            given_up=self._given_up,
        )
        self._number += 1
        job = _Job(contents=contents, target=target or self._durable, meeting=meeting, began=began)
        if self._buffers is None:
            self._work(job, values)
            return
        for buffer, value in zip(self._buffers, values, strict=True):
            buffer.copy_(value, non_blocking=True)
        if any(value.is_cuda for value in values):
            torch.cuda.current_stream().synchronize()
        job.blocked = time.perf_counter() - began
        self._thread = threading.Thread(target=self._work, args=(job, self._buffers), name="checkpoint", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait for the save under way; raise what ended it, once.

        Raises:
            ShardlineError: the first failure of any rank, the same on every rank; the checkpoint doesn't count.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Give up the save under way, if there is one: it will not count."""
        self._given_up.set()
        if self._thread is not None:
            self._thread.join(_LEAVING_SECONDS)

    def _work(self, job: _Job, values: list[Tensor]) -> None:
        try:
            self._save(job, values)
        except GivenUp:
            pass
        except Exception as error:
            self._error = error

    def _save(self, job: _Job, values: list[Tensor]) -> None:
        """This rank's part, and what the ranks decide then."""
        own: Exception | None = None
        meeting = job.meeting
        try:
            meeting.report({"file": self._write(job, values)})
        except GivenUp:
            raise
        except Exception as error:
            own = error
            meeting.report({"error": to_record(error)})
        failed = self._decide(job) if self._context.rank == 0 else meeting.decision()
        if failed:
            raise own if own and failed["rank"] == self._context.rank else _of_rank(failed)

    def _write(self, job: _Job, values: list[Tensor]) -> dict[str, Any] | None:
        """The record of this rank's file; None where other ranks write all that it holds."""
        self._before_commit()
        if not self._plan.names:
            return None
        plan, step = self._plan, job.contents.step
        folder, sign = job.target.folder(step), job.meeting.sign
        file = write_tensors(folder, plan.file, header=plan.header, tensors=values, on_progress=sign)
        job.target.written(step, file)
        return asdict(file)

    def _decide(self, job: _Job) -> dict[str, Any]:
        """Commit when all ranks are done; empty, or the failure that all are to raise. For rank 0."""
        meeting = job.meeting
        reports = meeting.reports()
        failed = _first_failure(reports)
        if failed is None:
            files = [FileRecord(**each["file"]) for each in reports if each["file"]]
            try:
                record = self._commit(job, files)
            except GivenUp:
                raise
            except Exception as error:
                meeting.decide({**to_record(error), "rank": 0})
                raise
            meeting.decide({})
            seconds = time.perf_counter() - job.began
            if job.target is self._durable:
                self._on_saved(Saved(record=record, seconds=seconds, blocked=min(job.blocked, seconds)))
            return {}
        meeting.decide(failed)
        return failed

    def _commit(self, job: _Job, files: list[FileRecord]) -> CheckpointRecord:
        context, plan, contents, meeting = self._context, self._plan, job.contents, job.meeting
        for file in files:
            meeting.sign()
            job.target.check(contents.step, file)
        if plan.index is None:
            raise RuntimeError("only rank 0 commits")
        index = write_bytes(job.target.folder(contents.step), plan.index_file, plan.index)
        job.target.written(contents.step, index)
        files = [index, *files]
        record = CheckpointRecord(
            step=contents.step,
            generation=context.generation,
            files={file.name: {"size": file.size, "sha256": file.sha256} for file in files},
            index=plan.index_file,
            state=contents.state,
            identity=contents.identity,
            identity_keys=contents.identity_keys,
            layout=contents.layout,
            time=now(),
        )
        meeting.sign()
        job.target.commit(record)
        return record


def _first_failure(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The failure to raise of those that the ranks report: a bug before storage that failed, then the lowest rank's."""
    failures = [{**each["error"], "rank": rank} for rank, each in enumerate(reports) if "error" in each]
    return max(failures, key=lambda failed: failed["exit_code"] == EXIT_BUG, default=None)


def _of_rank(failed: dict[str, Any]) -> ShardlineError:
    return from_record({**failed, "message": f"rank {failed['rank']}: {failed['message']}"})
