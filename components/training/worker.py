"""The training worker: from the checkpoint to go on from to the last optimizer step.

Called by an agent in each process of a generation. Everything that a run records on the way leaves from here.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import Any

from shardline.components.common.config import RunConfig
from shardline.components.common.config.identity import check_identity
from shardline.components.common.errors import Regrouped, StopRequested, UserError
from shardline.components.common.huggingface.pretrained import Pretrained
from shardline.components.common.runfolder import read_config
from shardline.components.common.storage import Storage
from shardline.components.common.streams import read_all
from shardline.components.common.workers import WorkerContext
from shardline.components.planning.layout import Layout
from shardline.components.sharding import decisions
from shardline.components.sharding.dataset import Dataset
from shardline.components.sharding.order import DataPolicy, SampleOrder
from shardline.components.training.checkpoint import loading, memory
from shardline.components.training.checkpoint.record import COUNTERS, CheckpointRecord, describe
from shardline.components.training.checkpoint.store import Folder
from shardline.components.training.guard import Watch
from shardline.components.training.guarding import Guarding, settings_after
from shardline.components.training.memory import collected, peaks
from shardline.components.training.profiling import Profiling
from shardline.components.training.recorder import Recorder
from shardline.components.training.requests import SNAPSHOT, Requests
from shardline.components.training.saves import Saves
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
    split, decided = data.split("train"), decisions.decided(context.run)
    policy = decisions.policy_with(decided, config)
    order = split.order(policy)
    done, saved, counters, recent = _resume(context, config=config, session=session, order=order, recorder=recorder)
    watch = Watch(settings_after(len(decided), config), recent=recent)
    profiling = Profiling(context, training.profile, recorder=recorder)
    guarding = Guarding(context, config=config, data=data, policy=policy, recorder=recorder)
    with (
        session.loader(split, order=order, position=counters["position"]) as loader,
        collected(every=training.gc_every) as collection,
        Requests(context) as requests,
        Saves(
            context, config=config, session=session, recorder=recorder, policy=policy.to_json(), saved=saved
        ) as saves,
    ):
        began, save_seconds = time.perf_counter(), 0.0
        for step, batches in zip(range(done, training.steps), loader, strict=False):
            loaded = time.perf_counter()
            profiling.before(step)
            request = requests.waiting() | (SNAPSHOT if saves.snapshot_is_due() else 0)
            result = session.step(batches, step=step, watch=watch, request=request)
            profiling.after(step)
            done = step + 1
            counters = {
                "position": loader.position,
                "updates": counters["updates"] + result.updated,
                "tokens": counters["tokens"] + result.tokens,
            }
            ended = time.perf_counter()
            # From the end of the step before: what waits for data or a save is part of what a step takes.
            recorder.step(
                step,
                batches,
                samples=order.stage_at(step).stage.global_batch,
                result=result,
                seconds=ended - began,
                data_seconds=loaded - began - save_seconds,
                save_seconds=save_seconds,
            )
            began = ended
            guarding.after_step(step, result, settle=saves.wait)
            collection.after_step(step)
            asked = requests.agreed(result.request, step=step)
            if "profile" in asked:
                profiling.ask(done, steps=asked["profile"]["steps"], ranks=asked["profile"]["ranks"])
            if asked.keys() & {"stop", "regroup"} and done < training.steps:
                saves.finish(done, counters=counters, recent=watch.recent)
                if "stop" in asked:
                    raise StopRequested(f"stopped as asked, after optimizer step {done:,} of {training.steps:,}")
                raise Regrouped(f"saved after optimizer step {done:,}, for a group of another size to go on")
            save_seconds = saves.after_step(
                done,
                loss=result.loss,
                counters=counters,
                recent=watch.recent,
                seconds=ended - loaded,
                snapshot=bool(result.request & SNAPSHOT),
            )
        saves.finish(done, counters=counters, recent=watch.recent)
        used = peaks(session.parts.device)
        if recorder.events:
            recorder.events.emit("memory.peak", {"ranks": used})


def _resume(
    context: WorkerContext, *, config: RunConfig, session: Session, order: SampleOrder, recorder: Recorder
) -> tuple[int, int, dict[str, int], list[float]]:
    """The optimizer steps that are done, and that are saved; the counters after them and the losses that the guard
    compares with.

    The session then has the state of then.
    """

    def load(record: CheckpointRecord, folder: Folder | None = None) -> None:
        check_identity(config, record.identity_keys, hash=record.identity, where=context.run.url_of(record.folder))
        _check_policy(record, order=order, recorder=recorder)
        session.load(record, with_optimizer=True, folder=folder)

    saved = 0
    record = memory.load_snapshot(context, load=load, events=recorder.events)
    if record is None:
        record = loading.load_newest(context, load=load, events=recorder.events)
        if record is None:
            _begin(context, config=config, session=session, recorder=recorder)
            return 0, 0, dict.fromkeys(COUNTERS, 0), []
        saved = record.step
        recorder.checkpointed(record)
        if recorder.events:
            recorder.events.emit("checkpoint.loaded", describe(record), reason="the newest that is whole")
    counters = {name: record.state[name] for name in COUNTERS}
    return record.step, saved, counters, list(record.state.get("recent_losses", ()))


def _begin(context: WorkerContext, *, config: RunConfig, session: Session, recorder: Recorder) -> None:
    """Begin at step 0, with the values of the model that the run starts from; where there is none they are initial."""
    if recorder.events:
        # No checkpoint ever counted, or somebody took all of them away: damaged ones end the run.
        done = _recorded_steps(context.run)
        reason = "the run is new"
        if done:
            reason = f"{done:,} optimizer steps were done and none of them is saved: they are done again"
        recorder.events.emit("training.begun", {"step": 0, "done_before": done}, reason=reason)
    url = config.model.url
    if url is None:
        return
    model = Pretrained(url)
    session.begin_from(model)
    if recorder.events:
        files = {"files": len(model.weights.sizes), "bytes": sum(model.weights.sizes.values())}
        told = {"url": url, "fingerprint": config.model.fingerprint, **files}
        recorder.events.emit("model.imported", told, reason=f"the run starts from {url}")


def _recorded_steps(run: Storage) -> int:
    """The optimizer steps that earlier generations have told of."""
    return 1 + max(
        (each["data"]["step"] for each in read_all(run.at("metrics")) if each["name"] == "train"), default=-1
    )


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
        reason = "training.stages, training.skip or a roll-back changed it for the steps to come"
        recorder.events.emit("policy.changed", data, reason=reason)
