"""Training with one deliberate mistake in it. A parity test that such a mistake passes would prove nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch.distributed as dist

from shardline.components.common.workers import WorkerContext
from shardline.components.sharding import loader, order
from shardline.components.sharding.batch import Batch
from shardline.components.training import executor, session, tied, worker

#: Global sample indices, of steps 2 and 3 with 16 samples a step; microbatches 1 and 2 of their steps.
SWAPPED = (35, 52)


def train(context: WorkerContext, *, mistake: str, **arguments: Any) -> None:
    make, originals = _MISTAKES[mistake]
    kept = {place: getattr(*place) for place in originals}
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

    def scaled(parameters: Any, *, pp_group: Any, **options: Any) -> Any:
        dp = context.world // dist.get_world_size(pp_group)
        for parameter in parameters:
            parameter.grad /= dp
        return original(parameters, pp_group=pp_group, **options)

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

    def unmasked(cls: Any, batches: Any, *, device: Any) -> Any:
        full = [changed(batch, details=batch.details._replace(loss_mask=batch.loss_mask | True)) for batch in batches]
        return original(cls, full, device=device)

    executor.Inputs.of = classmethod(unmasked)  # type: ignore[method-assign,assignment]


def _clip_per_stage(context: WorkerContext) -> None:
    original = session.clip_gradients

    def alone(parameters: Any, *, pp_group: Any, **options: Any) -> Any:
        groups = [dist.new_group([rank]) for rank in range(context.world)]
        return original(parameters, pp_group=groups[context.rank], **options)

    session.clip_gradients = alone


def _moment_lost(context: WorkerContext) -> None:
    optimizer_load = session.Session.load

    def load(self: Any, record: Any, *, with_optimizer: bool = False) -> None:
        optimizer_load(self, record, with_optimizer=with_optimizer)
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


_MISTAKES: dict[str, Any] = {
    "gradient scaled by dp": (_gradient_scaled, [(session, "clip_gradients")]),
    "two samples swapped across steps": (_samples_swapped, [(order.StageOrder, "split")]),
    "one sample corrupted": (_sample_corrupted, [(loader.Loader, "__next__")]),
    "one mask dropped": (_mask_dropped, [(executor.Inputs, "of")]),
    "clip per stage": (_clip_per_stage, [(session, "clip_gradients")]),
    "one moment lost": (_moment_lost, [(session.Session, "load")]),
    "tied embeddings apart": (_tied_apart, [(tied.Tied, "sum_gradients")]),
    "tied embeddings counted twice": (_tied_counted_twice, [(session, "clip_gradients")]),
}
