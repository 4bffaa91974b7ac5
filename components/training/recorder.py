"""What one rank of a training run writes into the run folder.

Called by `worker`. The rank that computes the losses of a data-parallel slice records its samples; rank 0 writes
metrics, events and the status, and every rank its vitals.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from types import TracebackType

from shardline.components.common.config import RunConfig
from shardline.components.common.events import EventLog
from shardline.components.common.status import StatusWriter
from shardline.components.common.streams import StreamWriter
from shardline.components.common.vitals import VitalsWriter, seconds_of
from shardline.components.common.workers import WorkerContext
from shardline.components.sharding.batch import Batch
from shardline.components.training.checkpoint.record import CheckpointRecord
from shardline.components.training.memory import held
from shardline.components.training.session import Session, StepResult


class Recorder:
    """The streams of this rank, open for the length of a `with` block."""

    def __init__(self, context: WorkerContext, *, config: RunConfig, session: Session) -> None:
        self.run = context.run
        self.events: EventLog | None = None
        self._context = context
        self._config = config
        self._layout = session.layout
        self._dp_rank = session.parts.place.dp
        self._records_samples = session.parts.has_last_stage and session.parts.place.leads_slice
        self._rate = 0.0
        self._samples: StreamWriter | None = None
        self._metrics: StreamWriter | None = None
        self._status: StatusWriter | None = None
        self._skipped = 0
        device, leads = session.parts.device, context.rank == 0
        self._vitals = VitalsWriter(
            memory=lambda: held(device),
            generation=context.generation,
            rank=context.rank,
            world=context.world,
            started=time.time(),
            steps=config.training.steps,
            checkpoint_step=0 if leads else None,
            checkpoint_every=config.training.checkpoint.every if leads else None,
        )
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Recorder:
        context = self._context
        self._open.enter_context(self._vitals)
        if self._records_samples:
            self._samples = self._open.enter_context(self._stream("samples"))
        if context.rank == 0:
            self._metrics = self._open.enter_context(self._stream("metrics"))
            log = EventLog(context.run, generation=context.generation, writer="train-worker")
            self.events = self._open.enter_context(log)
            self.events.emit("generation.started", {"world": context.world, "layout": self._layout.to_json()})
            status = StatusWriter(context.run, phase="train", generation=context.generation, lease=context.lease)
            self._status = self._open.enter_context(status)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Each stream is closed even if storage fails for another.
        self._open.__exit__(kind, error, trace)

    def _stream(self, name: str) -> StreamWriter:
        return StreamWriter(
            self.run.at(name),
            generation=self._context.generation,
            writer=f"rank{self._context.rank:05d}",
            rank=self._context.rank,
            flush_seconds=self._config.monitoring.flush_seconds,
        )

    def step(
        self,
        step: int,
        batches: Sequence[Batch],
        *,
        samples: int,
        result: StepResult,
        seconds: float,
        data_seconds: float,
        save_seconds: float,
    ) -> None:
        """Record optimizer step `step` (from 0).

        Args:
            samples: of the global batch.
            seconds: wall time since the end of the step before.
            data_seconds: the part of it that went by before this step's samples were there.
            save_seconds: the part of it that a checkpoint took, of the state before this step.

        Raises:
            Superseded: another process has taken the run over.
        """
        if self._samples:
            self._record_samples(self._samples, step, batches)
        rate = result.tokens / seconds
        # A running mean over about twenty steps: what the progress bar shows should not jitter.
        self._rate = rate if not self._rate else 0.95 * self._rate + 0.05 * rate
        training, done = self._config.training, step + 1
        self._skipped += not result.updated
        self._vitals.set(
            step=done, loss=result.loss, tokens_per_second=self._rate, finished=time.time(), skipped=self._skipped
        )
        if self._metrics and (done % self._config.monitoring.log_every == 0 or done == training.steps):
            self._metrics.append(
                "train",
                {
                    "step": step,
                    "loss": result.loss,
                    "updated": result.updated,
                    "lr": result.learning_rate,
                    "grad_norm": result.gradient_norm,
                    "tokens": result.tokens,
                    "samples": samples,
                    "seconds": round(seconds, 6),
                    "data_seconds": round(data_seconds, 6),
                    "save_seconds": round(save_seconds, 6),
                    "tokens_per_second": round(rate, 1),
                },
            )
        if self._status:
            self._status.set(
                step=done,
                steps=training.steps,
                loss=result.loss,
                tokens_per_second=round(self._rate, 1),
                eta_seconds=round((training.steps - done) * result.tokens / self._rate, 1),
            )

    def _record_samples(self, stream: StreamWriter, step: int, batches: Sequence[Batch]) -> None:
        for turn, batch in enumerate(batches):
            indices = [int(sample) for sample in batch.samples if sample >= 0]
            if indices:
                microbatch = turn * self._layout.dp + self._dp_rank
                data = {"step": step, "microbatch": microbatch, "dp_rank": self._dp_rank, "indices": indices}
                stream.append("samples", data)

    def checkpointed(self, record: CheckpointRecord) -> None:
        """Take note of the newest checkpoint, on rank 0."""
        if self._context.rank == 0:
            self._vitals.set(checkpoint_step=record.step, checkpoint_time=seconds_of(record.time))

    def flush(self) -> None:
        """Put out all that was recorded: it must be there before a checkpoint that holds its steps is."""
        for stream in (self._samples, self._metrics, self.events):
            if stream:
                stream.flush()
