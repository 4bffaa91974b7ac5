"""The rules that tie several keys of the run config together. Pure: a config in, problems out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from shardline.components.common.config.data_rules import broken_data_rules
from shardline.components.common.config.kubeflow_schema import broken_kubeflow_rules
from shardline.components.common.config.kubernetes_rules import broken_kubernetes_rules
from shardline.components.common.config.presets import ModelShape
from shardline.components.common.config.schedules import (
    SCHEDULES,
    microbatches_problem,
    split_backward_problem,
    stages_problem,
)
from shardline.components.common.config.schema import RunConfig
from shardline.components.common.config.training_schema import Layout, Training

#: The axes of a layout: their product is the number of processes.
AXES = ("dp_replicate", "dp_shard", "tp", "cp", "pp")


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: the key, and what would be right."""

    path: str
    rule: str


def broken_rules(config: RunConfig) -> Iterator[Problem]:
    training = config.training
    # Of a model that is yet to be read nothing is known of its sizes: the rules for them are applied once it is.
    shape = None if config.model.is_open else config.model.shape(config.tokenizer.vocab)
    yield from _start(config)
    yield from _parents(config)
    if shape:
        yield from _model(config, shape)
    yield from _batch("training.global_batch", training.global_batch, training.microbatch)
    for number, stage in enumerate(training.stages):
        if stage.global_batch:
            yield from _batch(f"training.stages.{number}.global_batch", stage.global_batch, training.microbatch)
    if training.precision == "float8" and config.resources.device == "cpu":
        rule = "needs GPUs of compute capability 8.9 or more, and resources.device is cpu; take bf16"
        yield Problem("training.precision", rule)
    if shape:
        yield from _layout(training, shape)
    workers = config.sharding.workers
    if isinstance(workers, int) and workers < 1:
        yield Problem("sharding.workers", "must be at least 1, or auto")
    processes = config.resources.processes
    if isinstance(processes, int):
        if processes < 1:
            yield Problem("resources.processes", "must be at least 1, or auto")
        else:
            yield from _world(training.layout, processes)
    if "://" in config.resources.cache.folder:
        yield Problem("resources.cache.folder", "must be a folder of the node, not a URL")
    port = config.monitoring.worker_port
    if port and not 1024 <= port <= 65535:
        yield Problem("monitoring.port", "must be from 1024 to 65535, or auto, or 0 for none")
    if not port and config.kubernetes.pod_monitor is not None:
        yield Problem("monitoring.port", "must not be 0 with kubernetes.pod_monitor: there is nothing to scrape")
    if config.storage.endswith("://"):
        yield Problem("storage", "must name a folder or a bucket after the scheme")
    for path, rule in broken_data_rules(config, shape):
        yield Problem(path, rule)
    if config.elastic.snapshots != "auto" and config.elastic.snapshots < 0:
        yield Problem("elastic.snapshots", "must be at least 0, or auto")
    if config.kubernetes.grace <= config.elastic.grace:
        yield Problem("kubernetes.grace", f"must be above elastic.grace ({config.elastic.grace}), for a pod to save in")
    for path, rule in broken_kubernetes_rules(config.kubernetes):
        yield Problem(path, rule)
    for path, rule in broken_kubeflow_rules(config.kubeflow):
        yield Problem(path, rule)


def _start(config: RunConfig) -> Iterator[Problem]:
    url, fingerprint = config.model.url, config.model.fingerprint
    if url is None and fingerprint is not None:
        yield Problem("model.fingerprint", "is that of the model at model.url, which is not set")
    if config.model.class_ is not None:
        if url is not None:
            yield Problem("model.class", "can't stand beside model.url: its values are those of a Llama-style decoder")
        if config.model.tie_embeddings:
            yield Problem("model.tie_embeddings", "is not for a model.class: its parameters are each in one stage")
    if url is not None and config.tokenizer.url is None:
        rule = f"is needed beside model.url: a trained model knows its own tokens alone; set {url.rstrip('/')}"
        yield Problem("tokenizer.url", f"{rule}/tokenizer.json, if it is there")


def _parents(config: RunConfig) -> Iterator[Problem]:
    training = config.training
    if not training.start:
        return
    if config.model.url is not None:
        yield Problem("training.start", "can't stand beside model.url: each says where the first values come from")
    chosen = [number for number, parent in enumerate(training.start) if parent.position]
    if len(chosen) > 1:
        yield Problem(f"training.start.{chosen[1]}.position", "only one of them can give step and data position")
    steps = sorted({parent.step for parent in training.start})
    if len(steps) > 1 and not chosen:
        rule = (
            f"the checkpoints are of steps {', '.join(map(str, steps))}: set position: true for the one to go on from"
        )
        yield Problem("training.start", rule)
    elif training.steps < training.first_step:
        rule = f"must be at least {training.first_step}, the steps that training.start has done"
        yield Problem("training.steps", rule)


def _model(config: RunConfig, shape: ModelShape) -> Iterator[Problem]:
    if shape.head_width is None and shape.dim % shape.heads:
        yield Problem("model.heads", f"must divide model.dim ({shape.dim}), or model.head_dim be set")
    elif shape.head_width and shape.head_dim % 2:
        yield Problem("model.head_dim", "must be even: the rotary embedding turns pairs")
    elif shape.head_dim % 2:
        yield Problem("model.heads", f"must leave an even head size; model.dim / model.heads is {shape.head_dim}")
    elif shape.heads % shape.kv_heads:
        yield Problem("model.kv_heads", f"must divide model.heads ({shape.heads})")
    rope = config.model.rope_scaling
    if rope.low_freq_factor >= rope.high_freq_factor:
        yield Problem("model.rope_scaling.high_freq_factor", f"must be above low_freq_factor ({rope.low_freq_factor})")
    trained_here = config.tokenizer.url is None
    if trained_here and shape.vocab < config.tokenizer.vocab:
        yield Problem("model.vocab", f"must be at least tokenizer.vocab ({config.tokenizer.vocab})")


def _batch(path: str, batch: int, microbatch: int) -> Iterator[Problem]:
    if batch % microbatch:
        near = sorted({max(microbatch, batch // microbatch * microbatch), (batch // microbatch + 1) * microbatch})
        right = " or ".join(str(value) for value in near)
        yield Problem(path, f"must be a multiple of training.microbatch ({microbatch}), such as {right}")


def _layout(training: Training, shape: ModelShape) -> Iterator[Problem]:
    layout = training.layout
    for name in (*AXES, "stages_per_rank"):
        value = getattr(layout, name)
        if isinstance(value, int) and value < 1:
            yield Problem(f"training.layout.{name}", "must be at least 1, or auto")
            return
    pp = 1 if layout.pp == "auto" else layout.pp
    stages = SCHEDULES[layout.schedule].least_stages if layout.schedule != "auto" else 1
    if layout.stages_per_rank != "auto":
        stages = layout.stages_per_rank
        problem = None if layout.schedule == "auto" else stages_problem(layout.schedule, stages)
        if problem:
            yield Problem("training.layout.stages_per_rank", problem)
    if pp * stages > shape.layers:
        yield Problem("training.layout.pp", f"{pp * stages} stages need as many layers; the model has {shape.layers}")
        return
    if pp > 1 and training.smallest_batch % training.microbatch == 0:
        yield from _microbatches(training, pp)
    yield from _pipeline(training, pp)


def _microbatches(training: Training, pp: int) -> Iterator[Problem]:
    layout = training.layout
    schedule = "1F1B" if layout.schedule == "auto" else layout.schedule
    data = _at_least(layout.dp_shard) * _at_least(layout.dp_replicate)
    problem = microbatches_problem(schedule, pp=pp, microbatches=-(-training.fewest_microbatches // data))
    # While a data-parallel axis is open, the planner may find a number of ranks that suits the schedule.
    if problem and (training.fewest_microbatches < pp or "auto" not in (layout.dp_shard, layout.dp_replicate)):
        yield Problem("training.layout.pp", f"{problem}: raise training.global_batch or lower training.microbatch")


def _pipeline(training: Training, pp: int) -> Iterator[Problem]:
    """What can't go with a pipeline, or with some schedules."""
    layout = training.layout
    if pp > 1 and layout.reshard is True:
        yield Problem(
            "training.layout.reshard",
            "must be auto or false in a pipeline: gathering again for each microbatch would dominate, and with a "
            "schedule that splits the backward pass torch 2.13 loses gradients without a word",
        )
    if layout.schedule != "auto" and layout.pp != 1:
        problem = split_backward_problem(layout.schedule, recompute=layout.recompute, compiled=training.compile)
        if problem:
            yield Problem("training.layout.schedule", problem)


def _at_least(value: int | str) -> int:
    return value if isinstance(value, int) else 1


def _world(layout: Layout, processes: int) -> Iterator[Problem]:
    values = [getattr(layout, name) for name in AXES]
    fixed = math.prod(_at_least(value) for value in values)
    if fixed > processes or ("auto" not in values and fixed != processes) or processes % fixed:
        yield Problem(
            "training.layout",
            f"{' x '.join(AXES)} = {fixed} does not fit resources.processes ({processes})",
        )
