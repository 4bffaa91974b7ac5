"""The rules that tie several keys of the run config together. Pure: a config in, problems out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shardline.components.common.config.data_rules import broken_data_rules
from shardline.components.common.config.presets import ModelShape
from shardline.components.common.config.schema import Layout, RunConfig, Training


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
    if shape:
        yield from _model(config, shape)
    yield from _batch("training.global_batch", training.global_batch, training.microbatch)
    for number, stage in enumerate(training.stages):
        if stage.global_batch:
            yield from _batch(f"training.stages.{number}.global_batch", stage.global_batch, training.microbatch)
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
    if config.storage.endswith("://"):
        yield Problem("storage", "must name a folder or a bucket after the scheme")
    for path, rule in broken_data_rules(config, shape):
        yield Problem(path, rule)


def _start(config: RunConfig) -> Iterator[Problem]:
    url, fingerprint = config.model.url, config.model.fingerprint
    if url is None and fingerprint is not None:
        yield Problem("model.fingerprint", "is that of the model at model.url, which is not set")
    if url is not None and config.tokenizer.url is None:
        rule = f"is needed beside model.url: a trained model knows its own tokens alone; set {url.rstrip('/')}"
        yield Problem("tokenizer.url", f"{rule}/tokenizer.json, if it is there")


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
    for name in ("dp_replicate", "dp_shard", "pp", "stages_per_rank"):
        value = getattr(layout, name)
        if isinstance(value, int) and value < 1:
            yield Problem(f"training.layout.{name}", "must be at least 1, or auto")
            return
    pp = 1 if layout.pp == "auto" else layout.pp
    stages = 1 if layout.stages_per_rank == "auto" else layout.stages_per_rank
    if layout.stages_per_rank == "auto" and layout.schedule == "Interleaved1F1B":
        stages = 2
    if pp * stages > shape.layers:
        yield Problem("training.layout.pp", f"{pp * stages} stages need as many layers; the model has {shape.layers}")
        return
    yield from _schedule(layout)
    data = (1 if layout.dp_shard == "auto" else layout.dp_shard) * (
        1 if layout.dp_replicate == "auto" else layout.dp_replicate
    )
    rounds = -(-training.fewest_microbatches // data)
    if pp > 1 and rounds < pp * stages and training.smallest_batch % training.microbatch == 0:
        yield Problem(
            "training.layout.pp",
            f"a pipeline of {pp * stages} stages needs at least {pp * stages} microbatches on each data-parallel rank; "
            f"there are {rounds}: raise training.global_batch or lower training.microbatch",
        )


def _schedule(layout: Layout) -> Iterator[Problem]:
    if layout.schedule == "1F1B" and layout.stages_per_rank not in ("auto", 1):
        yield Problem("training.layout.stages_per_rank", "must be 1 with schedule 1F1B; Interleaved1F1B takes more")
    if layout.schedule == "Interleaved1F1B" and layout.stages_per_rank == 1:
        yield Problem("training.layout.stages_per_rank", "must be at least 2 with schedule Interleaved1F1B")


def _world(layout: Layout, processes: int) -> Iterator[Problem]:
    fixed = 1
    free_axes = False
    for name in ("dp_replicate", "dp_shard", "pp"):
        value = getattr(layout, name)
        if value == "auto":
            free_axes = True
        else:
            fixed *= value
    if fixed > processes or (not free_axes and fixed != processes) or processes % fixed:
        yield Problem(
            "training.layout",
            f"dp_replicate x dp_shard x pp = {fixed} does not fit resources.processes ({processes})",
        )
