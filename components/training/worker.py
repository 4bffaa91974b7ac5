"""The training worker: from the checkpoint to go on from to the last optimizer step.

Called by an agent in each process of a generation. Everything that a run records on the way leaves from here.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import asdict
from typing import Any

from shardline.components.common.config import RunConfig
from shardline.components.common.config.identity import identity_hash
from shardline.components.common.errors import EnvironmentLacking, StorageLost, UserError
from shardline.components.common.runfolder import read_config
from shardline.components.common.storage import Storage
from shardline.components.common.workers import WorkerContext
from shardline.components.planning.layout import Layout
from shardline.components.sharding.dataset import Dataset
from shardline.components.sharding.loader import Loader
from shardline.components.sharding.order import DataPolicy, SampleOrder, policy_of
from shardline.components.training.checkpoint import catalog, saving
from shardline.components.training.checkpoint.catalog import CheckpointRecord
from shardline.components.training.recorder import Recorder
from shardline.components.training.session import Session, open_session


def train(context: WorkerContext, *, dataset: str, layout: dict[str, Any], device: str) -> None:
    """Train as rank `context.rank` until the config's last step.

    Args:
        dataset: the data set's key under the storage root.
        layout: a `Layout` as JSON, the same on every rank.
        device: "cpu" or "cuda".
    """
    config = read_config(context.run)
    data = Dataset.open(Storage(config.storage), dataset, cache=config.resources.cache)
    with (
        open_session(
            context, config=config, layout=Layout.from_json(layout), vocab=data.manifest.vocab, device=device
        ) as session,
        Recorder(context, config=config, session=session) as recorder,
    ):
        _train(context, config=config, data=data, session=session, recorder=recorder)
        if data.cache and recorder.events:
            recorder.events.emit("cache.used", asdict(data.cache.statistics()), reason="of rank 0 in this generation")


def _train(context: WorkerContext, *, config: RunConfig, data: Dataset, session: Session, recorder: Recorder) -> None:
    training = config.training
    split, policy = data.split("train"), policy_of(config)
    order = split.order(policy)
    progress = _resume(context, config=config, session=session, order=order, recorder=recorder)
    loader = Loader(
        split,
        order=order,
        microbatch=training.microbatch,
        dp_rank=session.parts.dp_rank,
        dp_size=session.layout.dp,
        position=progress["position"],
    )
    with contextlib.closing(loader):
        began = time.perf_counter()
        for step, batches in zip(range(progress["step"], training.steps), loader, strict=False):
            loaded = time.perf_counter()
            result = session.step(batches, step=step)
            progress["step"] = step + 1
            progress["position"] = loader.position
            progress["updates"] += 1
            progress["tokens"] += result.tokens
            ended = time.perf_counter()
            # From the end of the step before: what waits for data or a save is part of what a step takes.
            recorder.step(
                step,
                batches,
                samples=order.stage_at(step).stage.global_batch,
                result=result,
                seconds=ended - began,
                data_seconds=loaded - began,
            )
            began = ended
            if progress["step"] % training.checkpoint.every == 0 and progress["step"] < training.steps:
                _save(session, config=config, progress=progress, policy=policy, recorder=recorder, final=False)
    if progress["step"] != progress["saved"]:
        _save(session, config=config, progress=progress, policy=policy, recorder=recorder, final=True)


def _resume(
    context: WorkerContext, *, config: RunConfig, session: Session, order: SampleOrder, recorder: Recorder
) -> dict[str, int]:
    record = saving.newest_sound(context, events=recorder.events)
    if record is None:
        return {"step": 0, "position": 0, "updates": 0, "tokens": 0, "saved": 0}
    if record.identity != identity_hash(config):
        raise UserError(
            "this checkpoint belongs to a run of another config",
            where=context.run.url_of(record.folder),
            hint="give the new run another name",
        )
    _check_policy(record, order=order, recorder=recorder)
    session.load(record, with_optimizer=True)
    if recorder.events:
        recorder.events.emit("checkpoint.loaded", saving.describe(record), reason="the newest that is whole")
    state = record.state
    return {
        "step": record.step,
        "saved": record.step,
        **{name: int(state[name]) for name in ("position", "updates", "tokens")},
    }


def _check_policy(record: CheckpointRecord, *, order: SampleOrder, recorder: Recorder) -> None:
    """Raises UserError when the steps that were done would have had other samples under the policy of now."""
    before, now = DataPolicy.from_json(str(record.state["policy"])), order.policy
    position = int(record.state["position"])
    if before.before(record.step) != now.before(record.step) or order.position_at(record.step) != position:
        raise UserError(
            f"the data policy of the {record.step} optimizer steps that are done is not the one they were done with",
            where="training.stages",
            hint="set mixture, stages and skip of the steps before it back; those to come may be changed",
        )
    if before != now and recorder.events:
        data = {"step": record.step, "policy": json.loads(now.to_json())}
        reason = "the config changed training.stages or training.skip for the steps to come"
        recorder.events.emit("policy.changed", data, reason=reason)


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
    except (StorageLost, EnvironmentLacking) as error:
        # Storage may come back before the next one is due; whatever else went wrong must not go on.
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
