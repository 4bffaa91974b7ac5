"""Tensor parallelism: one stage's heads, hidden units and vocabulary shared by the ranks of a mesh, by torch's DTensor.

Called by `parallel`, between building a stage on the meta device and sharding it. Between the layers, and from one
stage to the next, each rank has a slice of every sample's tokens (sequence parallelism, arXiv:2205.05198): norms and
residual sums are shared too, and attention and feed-forward gather their inputs and scatter their outputs.
"""

from __future__ import annotations

import warnings

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from shardline.components.training.model import TiedHead, Transformer


def share_weights(stage: Transformer, mesh: DeviceMesh) -> None:
    """Make the parameters of `stage` DTensors over `mesh`; its inputs and outputs stay plain tensors.

    The stage then takes and gives hidden states as [batch, length / tp, dim], and gives logits as
    [batch, length, vocab / tp].

    Raises:
        ValueError: the ranks don't divide heads, hidden units or vocabulary: the planner makes no such layout, and the
            loss would be wrong without a word.
    """
    shape = stage.shape
    if any(size % mesh.size() for size in (shape.heads, shape.kv_heads, shape.hidden, shape.vocab)):
        raise ValueError(f"{mesh.size()} tensor-parallel ranks do not divide {shape}")
    # The logits are a view of a DTensor; the loss changes nothing in place.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    tokens = Shard(1)
    plan: dict[str, ParallelStyle] = {}
    if stage.embedding is not None:
        plan["embedding"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=tokens)
    for index in stage.layers:
        layer = f"layers.{index}"
        for norm in ("attention_norm", "feed_forward_norm"):
            plan[f"{layer}.{norm}"] = SequenceParallel(use_local_output=True)
        plan[f"{layer}.attention"] = PrepareModuleInput(
            input_layouts=(tokens, None, None), desired_input_layouts=(Replicate(), None, None)
        )
        plan[f"{layer}.feed_forward"] = PrepareModuleInput(
            input_layouts=(tokens,), desired_input_layouts=(Replicate(),)
        )
        for name in ("attention.query", "attention.key", "attention.value", "feed_forward.gate", "feed_forward.up"):
            plan[f"{layer}.{name}"] = ColwiseParallel()
        for name in ("attention.output", "feed_forward.down"):
            plan[f"{layer}.{name}"] = RowwiseParallel(output_layouts=tokens)
    if stage.norm is not None:
        plan["norm"] = SequenceParallel(use_local_output=True)
    if isinstance(stage.head, TiedHead):
        # The embedding's weight is shared as a head's is: by the vocabulary.
        plan["head"] = PrepareModuleInputOutput(
            input_layouts=(tokens, None),
            desired_input_layouts=(Replicate(), None),
            output_layouts=Shard(-1),
            desired_output_layouts=Shard(-1),
        )
    elif stage.head is not None:
        plan["head"] = ColwiseParallel(input_layouts=tokens)
    parallelize_module(stage, mesh, plan)
