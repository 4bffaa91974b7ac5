"""A model at work under one layout, in one worker's process groups: what training and evaluation share.

`open_session` is entered once for each generation, may be entered again in the same process, and leaves no process
group behind.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from shardline.components.common.config import RunConfig
from shardline.components.common.errors import EnvironmentLacking, UserError
from shardline.components.common.huggingface.pretrained import Pretrained
from shardline.components.common.workers import WorkerContext
from shardline.components.planning.layout import Layout
from shardline.components.sharding.batch import Batch, absent
from shardline.components.sharding.dataset import Split
from shardline.components.sharding.loader import Loader, held_out_batches
from shardline.components.sharding.order import SampleOrder
from shardline.components.training.checkpoint import loading
from shardline.components.training.checkpoint.catalog import CheckpointRecord
from shardline.components.training.checkpoint.store import Folder
from shardline.components.training.executor import Executor, Inputs, executor_for
from shardline.components.training.guard import Verdict, Watch
from shardline.components.training.optimizer import (
    build_optimizer,
    check_state,
    clip_gradients,
    learning_rate,
    moments_of,
    set_learning_rate,
    set_updates,
    settle_gradients,
)
from shardline.components.training.parallel import Parts, lay_out
from shardline.components.training.pretrained import fill
from shardline.components.training.tied import Tied


@dataclass(frozen=True)
class StepResult:
    """One optimizer step.

    Attributes:
        loss: the mean over the target tokens by their weights, in nats; gradient_norm: before clipping; tokens: how
            many target tokens there are.
        verdict: whether it was sound; updated: whether the weights were changed.
        request: the sum over the ranks of what they gave to `step`.
    """

    loss: float
    gradient_norm: float
    learning_rate: float
    tokens: int
    verdict: Verdict
    updated: bool
    request: int = 0


@dataclass(frozen=True)
class Totals:
    """An evaluation: summed loss in nats, and the target tokens and bytes of text that it is over."""

    nats: float
    tokens: int
    bytes: int


class Session:
    """See `open_session`."""

    def __init__(self, context: WorkerContext, *, config: RunConfig, layout: Layout, parts: Parts) -> None:
        self.parts = parts
        self.layout = layout
        self._context = context
        self._config = config
        self._executors: dict[tuple[int, int], Executor] = {}
        self._parameters = [parameter for _, parameter in parts.named_parameters()]
        self._tied = Tied(parts)
        self._optimizer: torch.optim.Optimizer | None = None
        self._state_checked = False

    def _executor(self, *, rounds: int, sequence: int) -> Executor:
        """The executor for steps of `rounds` microbatches of `sequence` tokens: stages of training have their own."""
        if (rounds, sequence) not in self._executors:
            attention = self._config.model.attention == "document"
            self._executors[rounds, sequence] = executor_for(self.parts, rounds=rounds, document_attention=attention)
        return self._executors[rounds, sequence]

    # training

    def loader(self, split: Split, *, order: SampleOrder, position: int) -> Loader:
        """This rank's batches of `split`, endless, from the data position `position` on. To be closed by the caller."""
        return Loader(
            split,
            order=order,
            microbatch=self._config.training.microbatch,
            dp_rank=self.parts.place.dp,
            dp_size=self.layout.dp,
            position=position,
        )

    def step(
        self,
        batches: Sequence[Batch],
        *,
        step: int,
        watch: Watch,
        request: int = 0,
        look: Callable[[], None] | None = None,
    ) -> StepResult:
        """Do optimizer step `step` (from 0) on this rank's microbatches. Collective; the same answer on every rank.

        Args:
            watch: says whether the weights are updated.
            request: a number that all ranks get to know the sum of, at no cost.
            look: called when the gradients are there, before they are clipped and used.
        """
        training, optimizer = self._config.training, self._with_optimizer()
        inputs = self._inputs(batches)
        tokens, weight = self._count(batches)
        executor = self._executor(rounds=len(batches), sequence=batches[0].tokens.shape[1])
        loss = self._own(executor.train(inputs, weight=weight))
        settle_gradients(self._parameters)
        self._tied.sum_gradients()
        if look:
            look()
        norm = clip_gradients(self._parameters, limit=training.optimizer.clip, copies=self._tied.copies)
        # With the count of tokens the one wait for the device in a step: what is not finite must not reach the weights.
        shared = torch.stack([loss, torch.full_like(loss, float(request))])
        dist.all_reduce(shared)
        total, requested = shared.tolist()
        gradient_norm = float(norm)
        verdict = watch.judge(total, gradient_norm)
        updated = watch.accepts(verdict)
        rate = learning_rate(step, training=training)
        if updated:
            set_learning_rate(optimizer, rate)
            optimizer.step()
            if not self._state_checked:
                check_state(optimizer)
                self._state_checked = True
        optimizer.zero_grad(set_to_none=True)
        return StepResult(
            loss=total,
            gradient_norm=gradient_norm,
            learning_rate=rate,
            tokens=tokens,
            verdict=verdict,
            updated=updated,
            request=int(requested),
        )

    def _inputs(self, batches: Sequence[Batch], *, weighed: bool = True) -> Inputs:
        inputs = Inputs.of(batches, device=self.parts.device, weighed=weighed)
        return inputs.of_rank(self.parts.place.cp, self.layout.cp)

    def _own(self, loss: Tensor) -> Tensor:
        """What this rank adds to the sum over all ranks: tensor-parallel peers computed the same loss."""
        return loss if self.parts.place.tp == 0 else torch.zeros_like(loss)

    def _count(self, batches: Sequence[Batch]) -> tuple[int, float]:
        """The global batch's number of target tokens, and the sum of their weights; of nothing, 1 each."""
        masks, weights = ([getattr(batch, name) for batch in batches] for name in ("loss_mask", "loss_weights"))
        mine = [float(sum(each.sum(dtype=np.float64) for each in columns)) for columns in (masks, weights)]
        sums = torch.tensor(mine, dtype=torch.float64, device=self.parts.device)
        dist.all_reduce(sums, group=self.parts.dp_group)
        tokens, weight = sums.tolist()
        return max(1, int(tokens)), weight or 1.0

    # evaluation

    def evaluate(self, split: Split, *, on_blocks: Callable[[int], None] | None = None) -> Totals:
        """The loss over every block of `split`, each counted once, whatever the weights of documents: it is of text.

        Collective; the same answer on every rank.

        Args:
            on_blocks: told now and then how many blocks are done, over all ranks.
        """
        training = self._config.training
        batches = held_out_batches(
            split,
            microbatch=training.microbatch,
            dp_rank=self.parts.place.dp,
            dp_size=self.layout.dp,
        )
        rounds = self.layout.rounds(training.global_batch // training.microbatch)
        executor = self._executor(rounds=rounds, sequence=split.sequence)
        nats = torch.zeros((), dtype=torch.float64, device=self.parts.device)
        tokens = size = done = 0
        for group in _groups(batches, rounds):
            nats += self._own(executor.evaluate(self._inputs(group, weighed=False)))
            tokens += sum(int(batch.loss_mask.sum()) for batch in group)
            size += sum(int(batch.bytes.sum()) for batch in group)
            done += len(group) * training.microbatch * self.layout.dp
            if on_blocks:
                on_blocks(min(done, split.blocks))
        counts = torch.tensor([tokens, size], device=self.parts.device)
        dist.all_reduce(counts, group=self.parts.dp_group)
        dist.all_reduce(nats)
        return Totals(nats=float(nats), tokens=int(counts[0]), bytes=int(counts[1]))

    # state

    def load(self, record: CheckpointRecord, *, with_optimizer: bool = False, folder: Folder | None = None) -> None:
        """Take the values of a verified checkpoint, which lies where `record` says unless `folder` does. Collective."""
        folder = folder or self._context.run.at(record.folder)
        loading.load(self.tensors(with_optimizer=with_optimizer), folder=folder, record=record)
        for original, copy in self._tied.pairs:
            copy.data.copy_(original.data)
            if with_optimizer:
                state = self._with_optimizer().state
                for moment in moments_of(self._with_optimizer()):
                    state[copy][moment].copy_(state[original][moment])
        if with_optimizer:
            set_updates(self._with_optimizer(), int(record.state["updates"]))

    def begin_from(self, model: Pretrained) -> None:
        """Take the values of a trained model, each rank its own part.

        Raises:
            UserError: it is not the model that the run's config was made for.
            DamagedData: a file is not what it should be.
        """
        config = self._config.model
        # Reading samples of all files is enough once; the error of one rank ends them all.
        if model.shape != self.parts.shape or (self._context.rank == 0 and model.fingerprint != config.fingerprint):
            raise UserError(
                "is not the model that this run began with",
                where=config.url,
                hint="bring that back, or give the new run another name",
            )
        fill(self.parts.named_parameters(), weights=model.weights)

    def _with_optimizer(self) -> torch.optim.Optimizer:
        if self._optimizer is None:
            self._optimizer = build_optimizer(self.parts.named_parameters(), config=self._config.training.optimizer)
        return self._optimizer

    def tensors(self, *, with_optimizer: bool) -> dict[str, Tensor]:
        """What of this rank goes into a checkpoint, by name: the parameters and the optimizer's moments as they are."""
        tensors: dict[str, Tensor] = {}
        for name, parameter in self.parts.named_parameters():
            if f"model.{name}" in tensors:
                continue  # one of `pairs`: the original stands for both
            tensors[f"model.{name}"] = parameter
            if with_optimizer:
                optimizer = self._with_optimizer()
                state = optimizer.state[parameter]
                tensors.update({f"optimizer.{name}.{moment}": state[moment] for moment in moments_of(optimizer)})
        return tensors


@contextlib.contextmanager
def open_session(
    context: WorkerContext, *, config: RunConfig, layout: Layout, vocab: int, device: str
) -> Iterator[Session]:
    """Join the generation's process group, lay the model out, and leave it all at the end.

    Args:
        vocab: tokens of the data set's tokenizer.
        device: "cpu" or "cuda".
    """
    local_device = torch_device(device, local_rank=context.local_rank)
    dist.init_process_group(
        backend="nccl" if device == "cuda" else "gloo",
        store=context.store,
        rank=context.rank,
        world_size=context.world,
        timeout=context.timeout,
    )
    try:
        parts = lay_out(
            config.model.shape(vocab),
            layout=layout,
            rank=context.rank,
            device=local_device,
            precision=config.training.precision,
            seed=config.training.seed,
            compiled=config.training.compile,
            named=config.model.class_,
        )
        yield Session(context, config=config, layout=layout, parts=parts)
    finally:
        dist.destroy_process_group()


def torch_device(kind: str, *, local_rank: int) -> torch.device:
    """The device of the worker with `local_rank` on this machine.

    Raises:
        EnvironmentLacking: it is a CUDA device, and torch cannot use it.
    """
    if kind == "cpu":
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise EnvironmentLacking(
            f"torch sees {torch.cuda.device_count()} CUDA devices on this machine, and needs number {local_rank}",
            where="resources.device",
            hint="install a driver that fits this torch, or set it to cpu",
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def _groups(batches: Iterator[Batch], size: int) -> Iterator[list[Batch]]:
    """Groups of `size` batches; the last one is filled up with absent ones."""
    group: list[Batch] = []
    for batch in batches:
        group.append(batch)
        if len(group) == size:
            yield group
            group = []
    if group:
        rows, sequence = group[-1].tokens.shape
        yield group + [absent(rows, sequence)] * (size - len(group))
