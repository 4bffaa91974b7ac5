"""The train step: choose a layout for each generation, start the workers, see them through.

Called by the pipeline's train component and by `shardline train`. Run again it goes on from the newest checkpoint; when
that has `training.steps` optimizer steps or more there is nothing to train. Where a run begins from checkpoints of
others, its first one is made here.
"""

from __future__ import annotations

from typing import Any

from shardline.components.common.config import RunConfig
from shardline.components.common.machine import device
from shardline.components.common.metrics import read_metrics, recent_loss
from shardline.components.common.runfolder import run_storage
from shardline.components.common.step import stepping
from shardline.components.common.storage import Storage
from shardline.components.common.streams import read_all
from shardline.components.common.workers import Agent, Job
from shardline.components.planning.choose import choose
from shardline.components.sharding.step import find_dataset
from shardline.components.training.checkpoint import catalog
from shardline.components.training.start.begin import begin

ENTRY = "shardline.components.training.worker:train"


def run(config: RunConfig, *, agent: Agent, sources: dict[str, str] | None = None) -> dict[str, Any]:
    """Train to `training.steps`; returns what the newest checkpoint is, and the mean loss of the last steps before it.

    Raises:
        UserError: the data set is not there, or no layout fits.
        ShardlineError: the error that ended the workers.
    """
    with stepping(config, "train", sources=sources) as context:
        config = context.config
        data = find_dataset(config)
        begin(config, context.run, lease=context.lease, generation=context.generation, events=context.events, data=data)
        found, steps = catalog.current(context.run), config.training.steps
        skipped = found is not None and found.step >= steps
        if not skipped:

            def arguments(generation: int, world: int) -> dict[str, Any]:
                choice = choose(config, world=world, vocab=data.manifest.vocab)
                where = device(config, world=world)
                told = {"for": generation, "device": where, **choice.to_json()}
                context.events.emit("layout.chosen", told, reason=choice.reason)
                return {"dataset": data.manifest.key, "layout": choice.layout.to_json(), "device": where}

            job = Job(name="train", entry=ENTRY, arguments=arguments, regroups=True)
            agent.run(job, run=context.run, lease=context.lease, events=context.events)
        summary = _reached(context.run, steps=steps)
        if skipped:
            reason = f"step {summary['step']:,} is done, training.steps is {steps:,}: nothing to train"
            context.events.emit("training.skipped", summary, reason=reason)
        else:
            context.events.emit("training.finished", summary)
        context.events.flush()
        summary["loss"] = _loss(context.run)
        context.summary.update(summary)
        return summary


def outcome(config: RunConfig) -> dict[str, Any]:
    """As `run` returns it, of training that others have done."""
    run = run_storage(config)
    return {**_reached(run, steps=config.training.steps), "loss": _loss(run)}


def _reached(run: Storage, *, steps: int) -> dict[str, Any]:
    found = catalog.current(run)
    if found is None or found.step < steps:
        raise RuntimeError("the workers ended well and left no checkpoint of the last step")
    return {"step": found.step, "checkpoint": run.url_of(found.folder), "tokens": found.state["tokens"]}


def _loss(run: Storage) -> float | None:
    return recent_loss(read_metrics(run, events=read_all(run.at("events"))))
