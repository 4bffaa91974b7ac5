"""Training with one deliberate mistake in it. A parity test that such a mistake passes would prove nothing."""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import numpy as np
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from shardline.components.common.workers import WorkerContext
from shardline.components.planning.layout import Layout
from shardline.components.sharding import loader, order
from shardline.components.sharding.batch import Batch
from shardline.components.training import executor, initial, model, optimizer, parallel, session, tied, worker
from shardline.components.training.attention import document_mask
from shardline.components.training.context import SharedSamples

#: Global sample indices, of steps 2 and 3 with 16 samples a step; microbatches 1 and 2 of their steps.
SWAPPED = (35, 52)


def train(context: WorkerContext, *, mistake: str, **arguments: Any) -> None:
    make, originals = _MISTAKES[mistake]
    kept = {place: inspect.getattr_static(*place) for place in originals}
    try:
        make(context)
        worker.train(context, **arguments)
    finally:
        for (owner, name), original in kept.items():
            setattr(owner, name, original)


def changed(batch: Batch, **changes: Any) -> Batch:
    kept = {name: getattr(batch, name) for name in ("tokens", "targets", "samples", "index", "details")}
    return Batch(**{**kept, **changes})


def _gradient_scaled(context: WorkerContext) -> None:
    original = session.clip_gradients

    def scaled(parameters: Any, **options: Any) -> Any:
        for parameter in parameters:
            parameter.grad /= context.world
        return original(parameters, **options)

    session.clip_gradients = scaled


def _samples_swapped(context: WorkerContext) -> None:
    original = order.StageOrder.split
    first, second = SWAPPED

    def swapped(self: Any, draws: Any) -> Any:
        exchanged = np.where(draws == first, second, np.where(draws == second, first, draws))
        return original(self, exchanged)

    order.StageOrder.split = swapped  # type: ignore[method-assign]


def _sample_corrupted(context: WorkerContext) -> None:
    original = loader.Loader.__next__

    def corrupted(self: Any) -> Any:
        batches = original(self)
        if self.step == 3 and context.rank == context.world - 1:
            tokens = batches[0].tokens.copy()
            tokens[0] = tokens[0][::-1]
            batches[0] = changed(batches[0], tokens=tokens)
        return batches

    loader.Loader.__next__ = corrupted  # type: ignore[method-assign]


def _mask_dropped(context: WorkerContext) -> None:
    original = executor.Inputs.of.__func__  # type: ignore[attr-defined]

    def unmasked(cls: Any, batches: Any, **options: Any) -> Any:
        everywhere = {"loss_mask": np.True_, "loss_weights": np.float32(1)}
        full = {name: np.broadcast_to(value, batches[0].targets.shape).copy() for name, value in everywhere.items()}
        return original(cls, [changed(b, details=b.details._replace(**full)) for b in batches], **options)

    executor.Inputs.of = classmethod(unmasked)  # type: ignore[method-assign,assignment]


def _weights_left_out(context: WorkerContext) -> None:
    original = executor.Inputs.of.__func__  # type: ignore[attr-defined]

    def unweighed(cls: Any, batches: Any, **options: Any) -> Any:
        return original(cls, batches, **{**options, "weighed": False})

    executor.Inputs.of = classmethod(unweighed)  # type: ignore[method-assign,assignment]


def _weights_of_a_rank_alone(context: WorkerContext) -> None:
    original = session.Session._count

    def alone(self: Any, batches: Any) -> Any:
        tokens, _ = original(self, batches)
        return tokens, self.layout.dp * sum(float(batch.loss_weights.sum()) for batch in batches)

    session.Session._count = alone  # type: ignore[method-assign]


def _clip_per_stage(context: WorkerContext) -> None:
    original = session.clip_gradients

    def alone(parameters: Any, **options: Any) -> Any:
        groups = [dist.new_group([rank]) for rank in range(context.world)]
        return original(parameters, group=groups[context.rank], **options)

    session.clip_gradients = alone


def _moment_lost(context: WorkerContext) -> None:
    optimizer_load = session.Session.load

    def load(self: Any, record: Any, **options: Any) -> None:
        optimizer_load(self, record, **options)
        for state in self._with_optimizer().state.values():
            state["exp_avg"].zero_()
            break

    session.Session.load = load  # type: ignore[method-assign]


def _tied_apart(context: WorkerContext) -> None:
    tied.Tied.sum_gradients = lambda self: None  # type: ignore[method-assign]


def _tied_counted_twice(context: WorkerContext) -> None:
    original = session.clip_gradients

    def counted(parameters: Any, *, copies: Any, **options: Any) -> Any:
        return original(parameters, **options)

    session.clip_gradients = counted  # type: ignore[assignment]


def _offset_of_context_forgotten(context: WorkerContext) -> None:
    def from_the_beginning(self: Any, documents: Any) -> Any:
        mask = document_mask(documents)
        return mask[:, :, : mask.shape[2] // self._size]

    SharedSamples.mask = from_the_beginning  # type: ignore[method-assign]


def _context_in_a_row(context: WorkerContext) -> None:
    executor.share = lambda x, *, rank, size: x.chunk(size, dim=1)[rank]


def _norms_not_summed(context: WorkerContext) -> None:
    original = session.settle_gradients

    def unsummed(parameters: Any) -> None:
        for parameter in parameters:
            if parameter.dim() == 1:
                gradient = parameter.grad
                parameter.grad = DTensor.from_local(gradient.to_local(), gradient.device_mesh, parameter.placements)
        original(parameters)

    session.settle_gradients = unsummed


def _copies_counted(context: WorkerContext) -> None:
    original = optimizer._local_gradient
    optimizer._local_gradient = lambda parameter: (original(parameter)[0], 1)


def _shards_in_a_row(context: WorkerContext) -> None:
    def offsets(shape: Any, mesh: Any, placements: Any) -> Any:
        plain = [Shard(p.dim) if isinstance(p, _StridedShard) else p for p in placements]
        return original(shape, mesh, plain)

    original = initial.compute_local_shape_and_global_offset
    initial.compute_local_shape_and_global_offset = offsets


def _stages_swapped(context: WorkerContext) -> None:
    original = parallel.split_layers

    def swapped(layers: int, stages: int) -> list[range]:
        first, *middle, last = original(layers, stages)
        return [first, *reversed(middle), last]

    parallel.split_layers = swapped


def _resharded_in_a_pipeline(context: WorkerContext) -> None:
    Layout.reshards = property(lambda self: True)  # type: ignore[method-assign,assignment]


def _recomputed_otherwise(context: WorkerContext) -> None:
    original = model.recomputed

    def otherwise(kind: str, function: Any, x: Any, *inputs: Any) -> Any:
        calls = itertools.count(1)
        return original(kind, lambda x, *inputs: function(x / next(calls), *inputs), x, *inputs)

    model.recomputed = otherwise


def _peers_counted(context: WorkerContext) -> None:
    session.Session._own = lambda self, loss: loss  # type: ignore[method-assign]


_MISTAKES: dict[str, Any] = {
    "gradient scaled by dp": (_gradient_scaled, [(session, "clip_gradients")]),
    "two samples swapped across steps": (_samples_swapped, [(order.StageOrder, "split")]),
    "one sample corrupted": (_sample_corrupted, [(loader.Loader, "__next__")]),
    "one mask dropped": (_mask_dropped, [(executor.Inputs, "of")]),
    "weights left out": (_weights_left_out, [(executor.Inputs, "of")]),
    "weights of each rank alone": (_weights_of_a_rank_alone, [(session.Session, "_count")]),
    "clip per stage": (_clip_per_stage, [(session, "clip_gradients")]),
    "one moment lost": (_moment_lost, [(session.Session, "load")]),
    "tied embeddings apart": (_tied_apart, [(tied.Tied, "sum_gradients")]),
    "tied embeddings counted twice": (_tied_counted_twice, [(session, "clip_gradients")]),
    "context without its offset": (_offset_of_context_forgotten, [(SharedSamples, "mask")]),
    "context in a row": (_context_in_a_row, [(executor, "share")]),
    "norms not summed": (_norms_not_summed, [(session, "settle_gradients")]),
    "copies counted in the norm": (_copies_counted, [(optimizer, "_local_gradient")]),
    "shards of shared weights in a row": (
        _shards_in_a_row,
        [(initial, "compute_local_shape_and_global_offset")],
    ),
    "stages of a V swapped": (_stages_swapped, [(parallel, "split_layers")]),
    "resharded in a pipeline": (_resharded_in_a_pipeline, [(Layout, "reshards")]),
    "recomputed otherwise": (_recomputed_otherwise, [(model, "recomputed")]),
    "tensor-parallel peers counted": (_peers_counted, [(session.Session, "_own")]),
}
