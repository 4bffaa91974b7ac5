"""The training worker: from the checkpoint to go on from to the last optimizer step.

Called by an agent in each process of a generation. Everything that a run records on the way leaves from here.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

from shardline.components.common.config import RunConfig
from shardline.components.common.config.identity import identity_hash
from shardline.components.common.errors import ShardlineError, UserError
from shardline.components.common.events import EventLog
from shardline.components.common.runfolder import Throttle, read_config, write_status
from shardline.components.common.storage import Storage
from shardline.components.common.streams import StreamWriter
from shardline.components.common.workers import WorkerContext
from shardline.components.planning.layout import Layout
from shardline.components.sharding.batch import Batch
from shardline.components.sharding.dataset import Dataset
from shardline.components.sharding.loader import Loader
from shardline.components.sharding.order import DataPolicy, SampleOrder
from shardline.components.training.checkpoint import catalog, saving
from shardline.components.training.session import Session, StepResult, open_session


def train(context: WorkerContext, *, dataset: str, layout: dict[str, Any]) -> None:
    """Train as rank `context.rank` until the config's last step.

    Args:
        dataset: the data set's key under the storage root.
        layout: a `Layout` as JSON, the same on every rank.
    """
    config = read_config(context.run)
    data = Dataset.open(Storage(config.storage), dataset)
    with (
        open_session(context, config=config, layout=Layout.from_json(layout), vocab=data.manifest.vocab) as session,
        _recorder(context, config=config, session=session) as recorder,
    ):
        _train(context, config=config, data=data, session=session, recorder=recorder)


def _train(context: WorkerContext, *, config: RunConfig, data: Dataset, session: Session, recorder: Recorder) -> None:
    training = config.training
    policy = DataPolicy(seed=training.seed, window=training.window)
    progress = _resume(context, config=config, session=session, policy=policy, recorder=recorder)
    split = data.split("train")
    loader = Loader(
        split,
        order=SampleOrder(split.geometry, policy),
        global_batch=training.global_batch,
        microbatch=training.microbatch,
        dp_rank=session.parts.dp_rank,
        dp_size=session.layout.dp,
        position=progress["position"],
    )
    with contextlib.closing(loader):
        for step, batches in zip(range(progress["step"], training.steps), loader, strict=False):
            began = time.perf_counter()
            result = session.step(batches, step=step)
            progress["step"] = step + 1
            progress["position"] += training.global_batch
            progress["updates"] += 1
            progress["tokens"] += result.tokens
            recorder.step(step, batches, result=result, seconds=time.perf_counter() - began)
            if progress["step"] % training.checkpoint.every == 0 and progress["step"] < training.steps:
                _save(session, config=config, progress=progress, policy=policy, recorder=recorder, final=False)
    if progress["step"] != progress["saved"]:
        _save(session, config=config, progress=progress, policy=policy, recorder=recorder, final=True)


def _resume(
    context: WorkerContext, *, config: RunConfig, session: Session, policy: DataPolicy, recorder: Recorder
) -> dict[str, int]:
    record = saving.newest_sound(context, events=recorder.events)
    if record is None:
        return {"step": 0, "position": 0, "updates": 0, "tokens": 0, "saved": 0}
    if record.identity != identity_hash(config) or record.state["policy"] != policy.to_json():
        raise UserError(
            "this checkpoint belongs to a run of another config",
            where=context.run.url_of(record.folder),
            hint="give the new run another name",
        )
    session.load(record, with_optimizer=True)
    if recorder.events:
        recorder.events.emit("checkpoint.loaded", saving.describe(record), reason="the newest that is whole")
    state = record.state
    return {
        "step": record.step,
        "saved": record.step,
        **{name: int(state[name]) for name in ("position", "updates", "tokens")},
    }


def _save(
    session: Session,
    *,
    config: RunConfig,
    progress: dict[str, int],
    policy: DataPolicy,
    recorder: Recorder,
    final: bool,
) -> None:
    # What the steps in the checkpoint recorded must be there once the checkpoint is.
    recorder.flush()
    state = {**{name: progress[name] for name in ("position", "updates", "tokens")}, "policy": policy.to_json()}
    began = time.perf_counter()
    try:
        record = session.save(step=progress["step"], state=state)
    except ShardlineError as error:
        if recorder.events:
            recorder.events.emit("checkpoint.failed", {"step": progress["step"]}, reason=str(error))
        if final:
            raise
        return
    progress["saved"] = progress["step"]
    if recorder.events:
        seconds = round(time.perf_counter() - began, 3)
        reason = "the last step" if final else f"every {config.training.checkpoint.every} steps"
        recorder.events.emit("checkpoint.committed", {**saving.describe(record), "seconds": seconds}, reason=reason)
        if keep := config.training.checkpoint.keep:
            for step in catalog.prune(recorder.run, keep=keep):
                recorder.events.emit("checkpoint.pruned", {"step": step}, reason=f"training.checkpoint.keep is {keep}")


class Recorder:
    """What one rank writes into the run folder.

    The rank that computes the losses of a data-parallel slice records its samples; rank 0 writes metrics, events and
    the status.
    """

    def __init__(self, context: WorkerContext, *, config: RunConfig, session: Session) -> None:
        self.run = context.run
        self.events: EventLog | None = None
        self._config = config
        self._generation = context.generation
        self._rank = context.rank
        self._dp_rank, self._dp = session.parts.dp_rank, session.layout.dp
        self._throttle = Throttle()
        self._rate = 0.0
        self._samples: StreamWriter | None = None
        self._metrics: StreamWriter | None = None
        if session.parts.has_last_stage:
            self._samples = self._stream("samples")
        if context.rank == 0:
            self._metrics = self._stream("metrics")
            self.events = EventLog(context.run, generation=context.generation, writer="train-worker")
            self.events.emit("generation.started", {"world": context.world, "layout": session.layout.to_json()})

    def _stream(self, name: str) -> StreamWriter:
        return StreamWriter(
            self.run.at(name),
            generation=self._generation,
            writer=f"rank{self._rank:05d}",
            rank=self._rank,
            flush_seconds=self._config.monitoring.flush_seconds,
        )

    def step(self, step: int, batches: Sequence[Batch], *, result: StepResult, seconds: float) -> None:
        """Record optimizer step `step` (from 0), done in `seconds`."""
        if self._samples:
            for turn, batch in enumerate(batches):
                indices = [int(sample) for sample in batch.samples if sample >= 0]
                if indices:
                    data = {
                        "step": step,
                        "microbatch": turn * self._dp + self._dp_rank,
                        "dp_rank": self._dp_rank,
                        "indices": indices,
                    }
                    self._samples.append("samples", data)
        rate = result.tokens / seconds
        # A running mean over about twenty steps: what the progress bar shows should not jitter.
        self._rate = rate if not self._rate else 0.95 * self._rate + 0.05 * rate
        training = self._config.training
        last = step + 1 == training.steps
        if self._metrics and ((step + 1) % self._config.monitoring.log_every == 0 or last):
            self._metrics.append(
                "train",
                {
                    "step": step,
                    "loss": result.loss,
                    "lr": result.learning_rate,
                    "grad_norm": result.gradient_norm,
                    "tokens": result.tokens,
                    "samples": training.global_batch,
                    "seconds": round(seconds, 6),
                    "tokens_per_second": round(rate, 1),
                },
            )
        if self._metrics and (self._throttle.is_due() or last):
            left = (training.steps - step - 1) * result.tokens / self._rate
            write_status(
                self.run,
                phase="train",
                generation=self._generation,
                step=step + 1,
                steps=training.steps,
                loss=result.loss,
                tokens_per_second=round(self._rate, 1),
                eta_seconds=round(left, 1),
            )

    def flush(self) -> None:
        for stream in (self._samples, self._metrics, self.events):
            if stream:
                stream.flush()

    def close(self) -> None:
        for stream in (self._samples, self._metrics, self.events):
            if stream:
                stream.close()


@contextlib.contextmanager
def _recorder(context: WorkerContext, *, config: RunConfig, session: Session) -> Iterator[Recorder]:
    recorder = Recorder(context, config=config, session=session)
    try:
        yield recorder
    finally:
        recorder.close()
