"""When a run is saved, what is told of it, and which checkpoints go for it.

Called by `worker` between optimizer steps. Storage that fails costs a checkpoint and no more: an event says so,
training goes on, and the last good one stays. Whatever else goes wrong ends training.

A save that falls due while the one before is still being written waits for it, so that a run has the same checkpoints
whatever its storage; an event says that it did.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from statistics import fmean
from types import TracebackType

from shardline.components.common.config import RunConfig
from shardline.components.common.config.identity import identity_hash, identity_of
from shardline.components.common.errors import EnvironmentLacking, ShardlineError, StorageLost
from shardline.components.common.metrics import RECENT
from shardline.components.common.workers import WorkerContext
from shardline.components.training.checkpoint import retention
from shardline.components.training.checkpoint.loading import describe
from shardline.components.training.checkpoint.saving import Contents, Saved, Saver
from shardline.components.training.recorder import Recorder
from shardline.components.training.session import Session


class Saves:
    """The saves of one worker in one generation, for the length of a `with` block.

    Args:
        policy: the data policy, as JSON.
        saved: the step that the state came from; 0 when it is new.
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

    def after_step(self, step: int, *, loss: float, counters: dict[str, int], recent: list[float]) -> float:
        """Save if it is due; returns the seconds for which training stood still.

        Args:
            step: optimizer steps that are done.
            loss: of the last one.
            counters: `position`, `updates` and `tokens` after them.
            recent: the losses that the guard compares with.

        Raises:
            ShardlineError: a save ended with something else than a failure of storage.
        """
        self._losses.append(loss)
        self._settle()
        if step % self._every or step >= self._config.training.steps:
            return 0.0
        began = time.perf_counter()
        self._save(step, counters, recent)
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
        waited = self._saver.busy
        self._settle(wait=True)
        if waited and self._recorder.events:
            seconds = round(time.perf_counter() - began, 3)
            reason = "the save before was still being written: storage is slow for training.checkpoint.every"
            self._recorder.events.emit("checkpoint.waited", {"step": step, "seconds": seconds}, reason=reason)
        state = {**counters, "policy": self._policy, "recent_losses": recent}
        if self._losses:
            state["loss"] = fmean(self._losses)
        contents = Contents(
            step=step,
            state=state,
            identity=identity_hash(self._config),
            identity_keys=identity_of(self._config),
            layout=self._layout,
        )
        self._started = step
        self._saver.start(contents, since=began)
        self._settle()

    def _settle(self, *, wait: bool = False) -> None:
        """Take note of how the last save ended, if it has."""
        if self._saved == self._started or (self._saver.busy and not wait):
            return
        self._failure = None
        try:
            self._saver.wait()
            self._saved = self._started
        except (StorageLost, EnvironmentLacking) as error:
            # Storage may come back before the next one is due; whatever else went wrong must not go on.
            self._failure, failed, self._started = error, self._started, self._saved
            if self._recorder.events:
                self._recorder.events.emit("checkpoint.failed", {"step": failed}, reason=str(error))

    def _tell(self, saved: Saved) -> None:
        """On rank 0, beside training: the event, and what goes for the new checkpoint."""
        events, settings = self._recorder.events, self._config.training
        if events is None:
            return
        record = saved.record
        final = record.step >= settings.steps
        data = {**describe(record), "seconds": round(saved.seconds, 3), "blocked_seconds": round(saved.blocked, 6)}
        reason = "the last step" if final else f"every {self._every} steps"
        events.emit("checkpoint.committed", data, reason=reason)
        if keep := settings.checkpoint.keep:
            # What could not be removed is tried again after the next commit.
            with contextlib.suppress(StorageLost, EnvironmentLacking):
                for step in retention.prune(self._context.run, keep, newest=record, check=self._context.lease.check):
                    events.emit("checkpoint.pruned", {"step": step}, reason=f"training.checkpoint.keep: {keep}")
