"""When a run is saved, what is told of it, and which checkpoints go for it.

Called by `worker` between optimizer steps. Storage that fails costs a checkpoint and no more: an event says so,
training goes on, and the last good one stays. Whatever else goes wrong ends training.

A save that falls due while the one before is still being written waits for it, so that a run has the same checkpoints
whatever its storage; an event says that it did.

Between checkpoints snapshots go to memory, see `checkpoint.memory`: as often as they cost little. One that fails, or
falls due while something else is being written, is done without.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from pathlib import Path
from statistics import fmean
from types import TracebackType
from typing import Literal

import torch
import torch.distributed as dist

from shardline.components.common.config import RunConfig
from shardline.components.common.config.identity import identity_hash, identity_of
from shardline.components.common.errors import EnvironmentLacking, ShardlineError, StorageLost
from shardline.components.common.metrics import RECENT
from shardline.components.common.workers import WorkerContext
from shardline.components.training.checkpoint import retention
from shardline.components.training.checkpoint.memory import MemoryTarget, room
from shardline.components.training.checkpoint.record import describe
from shardline.components.training.checkpoint.saving import Contents, Saved, Saver
from shardline.components.training.dtensors import local_of
from shardline.components.training.pace import Pace
from shardline.components.training.recorder import Recorder
from shardline.components.training.session import Session

#: Snapshots that a machine holds at most: its own and another's, the last one and the one that is being made.
_HELD = 4


class Saves:
    """The saves of one worker in one generation, for the length of a `with` block.

    Args:
        policy: the data policy, as JSON.
        saved: the step that the state came from, if it was a checkpoint; else 0.
    """

    def __init__(
        self,
        context: WorkerContext,
        *,
        config: RunConfig,
        session: Session,
        recorder: Recorder,
        policy: str,
        saved: int,
    ) -> None:
        self._context = context
        self._config = config
        self._every = config.training.checkpoint.every
        self._recorder = recorder
        self._policy = policy
        self._saved = self._started = saved
        self._failure: ShardlineError | None = None
        self._losses: deque[float] = deque(maxlen=RECENT)
        self._layout = session.layout.to_json()
        self._under_way: Literal["checkpoint", "snapshot"] | None = None
        self._memory = _memory_target(context, config=config, session=session, recorder=recorder)
        self._pace = Pace(config.elastic.snapshots) if self._memory and context.rank == 0 else None
        self._saver = Saver(
            context,
            tensors=lambda: session.tensors(with_optimizer=True),
            background=config.training.checkpoint.async_,
            before_commit=recorder.flush,
            on_saved=self._tell,
        )

    def __enter__(self) -> Saves:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._saver.close()

    def snapshot_is_due(self) -> bool:
        """Whether all ranks should take a snapshot after the step to come. For rank 0; False on the others."""
        return self._pace is not None and not self._saver.busy and self._pace.is_due()

    def after_step(
        self,
        step: int,
        *,
        loss: float,
        counters: dict[str, int],
        recent: list[float],
        seconds: float,
        snapshot: bool,
    ) -> float:
        """Save if it is due; returns the seconds for which training stood still.

        Args:
            step: optimizer steps that are done.
            loss: of the last one.
            counters: `position`, `updates` and `tokens` after them.
            recent: the losses that the guard compares with.
            seconds: that the last step took.
            snapshot: whether all ranks take one now, unless a checkpoint is due.

        Raises:
            ShardlineError: a save ended with something else than a failure of storage.
        """
        self._losses.append(loss)
        if self._pace:
            self._pace.step(seconds, saving=self._under_way == "snapshot")
        self._settle()
        due = step % self._every == 0
        if step >= self._config.training.steps or not (due or snapshot):
            return 0.0
        began = time.perf_counter()
        if due:
            self._save(step, counters, recent)
        else:
            self._take_snapshot(step, counters, recent)
        return time.perf_counter() - began

    def wait(self) -> None:
        """See the save under way through; whether it ended well is the next one's to tell."""
        self._settle(wait=True)

    def finish(self, step: int, *, counters: dict[str, int], recent: list[float]) -> None:
        """See the save under way through, and save the last step; returns when its checkpoint is there.

        Raises:
            ShardlineError: it could not be saved.
        """
        self._settle(wait=True)
        if self._saved != step:
            self._save(step, counters, recent)
            self._settle(wait=True)
        if self._failure is not None:
            raise self._failure

    def _save(self, step: int, counters: dict[str, int], recent: list[float]) -> None:
        began = time.perf_counter()
        waited = self._saver.busy and self._under_way == "checkpoint"
        self._settle(wait=True)
        if waited and self._recorder.events:
            seconds = round(time.perf_counter() - began, 3)
            reason = "the save before was still being written: storage is slow for training.checkpoint.every"
            self._recorder.events.emit("checkpoint.waited", {"step": step, "seconds": seconds}, reason=reason)
        self._started = step
        self._under_way = "checkpoint"
        self._saver.start(self._contents(step, counters, recent), since=began)
        self._settle()

    def _take_snapshot(self, step: int, counters: dict[str, int], recent: list[float]) -> None:
        # Rank 0 began with a look at its own; another may have a file yet to write for what came before.
        self._settle(wait=True)
        began = time.perf_counter()
        self._under_way = "snapshot"
        self._saver.start(self._contents(step, counters, recent), target=self._memory)
        if self._pace:
            self._pace.took(time.perf_counter() - began)

    def _contents(self, step: int, counters: dict[str, int], recent: list[float]) -> Contents:
        state = {**counters, "policy": self._policy, "recent_losses": recent}
        if self._losses:
            state["loss"] = fmean(self._losses)
        return Contents(
            step=step,
            state=state,
            identity=identity_hash(self._config),
            identity_keys=identity_of(self._config),
            layout=self._layout,
        )

    def _settle(self, *, wait: bool = False) -> None:
        """Take note of how the last save ended, if it has."""
        if self._under_way is None or (self._saver.busy and not wait):
            return
        kind, self._under_way = self._under_way, None
        if kind == "snapshot":
            with contextlib.suppress(StorageLost, EnvironmentLacking):  # the next one may do better
                self._saver.wait()
            return
        self._failure = None
        try:
            self._saver.wait()
            self._saved = self._started
        except (StorageLost, EnvironmentLacking) as error:
            # Storage may come back before the next one is due; whatever else went wrong must not go on.
            self._failure = error
            if self._recorder.events:
                self._recorder.events.emit("checkpoint.failed", {"step": self._started}, reason=str(error))

    def _tell(self, saved: Saved) -> None:
        """On rank 0, beside training: the event, and what goes for the new checkpoint."""
        events, settings = self._recorder.events, self._config.training
        if events is None:
            return
        record = saved.record
        self._recorder.checkpointed(record)
        final = record.step >= settings.steps
        data = {**describe(record), "seconds": round(saved.seconds, 3), "blocked_seconds": round(saved.blocked, 6)}
        due = f"every {self._every} steps" if record.step % self._every == 0 else "training was asked to end"
        reason = "the last step" if final else due
        events.emit("checkpoint.committed", data, reason=reason)
        if keep := settings.checkpoint.keep:
            # What could not be removed is tried again after the next commit.
            with contextlib.suppress(StorageLost, EnvironmentLacking):
                for step in retention.prune(self._context.run, keep, newest=record, check=self._context.lease.check):
                    events.emit("checkpoint.pruned", {"step": step}, reason=f"training.checkpoint.keep: {keep}")


def _memory_target(
    context: WorkerContext, *, config: RunConfig, session: Session, recorder: Recorder
) -> MemoryTarget | None:
    """Where snapshots go; None where there are to be none, or a machine has no room for them. Collective."""
    if config.elastic.snapshots == 0 or context.memory is None:
        return None
    root = Path(context.memory)
    size = sum(local_of(each).nbytes for each in session.tensors(with_optimizer=True).values())
    # Workers of one machine share its memory.
    share = room(root) / max(1, context.local_world)
    enough = torch.tensor([share / max(1, _HELD * size)], device=session.parts.device)
    dist.all_reduce(enough, op=dist.ReduceOp.MIN)
    if float(enough) < 1:
        if recorder.events:
            reason = f"a machine has room for {float(enough):.0%} of what they would take in memory"
            recorder.events.emit("snapshots.off", {"bytes": size}, reason=reason)
        return None
    return MemoryTarget(root, generation=context.generation)
