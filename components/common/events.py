"""The events of a run: their names, in one table, and their writer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardline.components.common.storage import Storage
from shardline.components.common.streams import StreamWriter

EVENTS: dict[str, str] = {
    "run.started": "a process took the run over",
    "run.resumed": "the run goes on with what an earlier process left",
    "run.finished": "every step is done",
    "run.forked": "the run begins from a checkpoint of another, with what it does otherwise",
    "run.merged": "the run begins from the mean of checkpoints",
    "step.started": "a pipeline step began",
    "step.finished": "a pipeline step ended well",
    "step.failed": "a pipeline step ended with an error",
    "step.stopped": "a signal ended a pipeline step",
    "sharding.part_started": "a pod has begun with its part of the sharding",
    "sharding.skipped": "the data set was there already",
    "sharding.overtaken": "another process has made the same data set first",
    "sharding.appended": "the run goes on with a data set that has further sources",
    "sharding.finished": "the data set is complete",
    "policy.changed": "the data policy of the steps to come is another one from here on",
    "codec.chosen": "the codec that auto takes for the shards",
    "layout.chosen": "the parallel layout of a generation",
    "generation.started": "a group of workers formed",
    "worker.lost": "a worker ended before its time",
    "member.apart": "an agent is left out that does not reach another over the network",
    "budget.spent": "the run gives up: it was lost too often",
    "node.set_aside": "a node is done without, as it failed again and again",
    "checkpoint.committed": "a checkpoint is complete",
    "checkpoint.loaded": "training goes on from a checkpoint",
    "checkpoint.damaged": "a checkpoint was put aside",
    "checkpoint.failed": "a checkpoint could not be saved",
    "checkpoint.unfinished": "what is left of a save that did not come to its end was passed over",
    "checkpoint.waited": "a save that fell due waited for the one before it",
    "checkpoint.pruned": "an old checkpoint was removed",
    "snapshot.loaded": "training goes on from a snapshot in memory",
    "snapshot.lost": "a snapshot could not be read, so training goes on from the checkpoint before it",
    "snapshots.off": "no snapshots are taken",
    "memory.peak": "the most memory that each rank had",
    "cache.used": "what a rank had from the node cache",
    "update.skipped": "a loss or a gradient was not finite, and the weights were left as they are",
    "loss.spiked": "the loss of an optimizer step jumped",
    "training.rolled-back": "training goes on from an earlier checkpoint, past samples after which the loss jumped",
    "profile.written": "a trace of some optimizer steps is there",
    "training.begun": "training begins at step 0, as there is no checkpoint",
    "model.imported": "a run begins with the values of a trained model",
    "training.skipped": "the last optimizer step was done already",
    "training.finished": "the last optimizer step is done",
    "evaluation.finished": "a checkpoint was evaluated",
    "evaluation.rough": "there is too little held-out text for an exact number",
    "gate.decided": "the promotion gate's verdict",
    "model.exported": "the model was written as a Hugging Face folder",
    "model.not_exported": "there is no Hugging Face folder for a model of this class",
    "report.written": "the report was written",
}


class EventLog:
    """Writes a run's events; a name that is not in the table is a bug."""

    def __init__(
        self, run: Storage, *, generation: int, writer: str, rank: int = 0, flush_seconds: float = 1.0
    ) -> None:
        self._stream = StreamWriter(
            run.at("events"), generation=generation, writer=writer, rank=rank, flush_seconds=flush_seconds
        )

    def emit(self, name: str, data: Mapping[str, Any] | None = None, *, reason: str | None = None) -> None:
        if name not in EVENTS:
            raise KeyError(f"event {name!r} is not in the table of events")
        self._stream.append(name, data or {}, reason=reason)

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        self._stream.close()

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
