"""What a layout needs and how its time compares, from the model's sizes alone. Pure arithmetic; no torch.

Memory follows "Reducing Activation Recomputation in Large Transformer Models" (Korthikanti et al., arXiv:2205.05198)
and "ZeRO" (Rajbhandari et al., arXiv:1910.02054), adapted to this model's layers; the pipeline's bubble is that of
"Efficient Large-Scale Language Model Training on GPU Clusters" (Narayanan et al., arXiv:2104.04473).
"""

from __future__ import annotations

from dataclasses import dataclass

from shardline.components.common.config.presets import ModelShape
from shardline.components.common.config.schema import Training
from shardline.components.planning.layout import Layout, split_layers

#: Bytes a parameter: the master value, its gradient and AdamW's two moments.
_STATE_BYTES = {"fp32": 16, "bf16": 16, "fp64": 32}
_COMPUTE_BYTES = {"fp32": 4, "bf16": 2, "fp64": 8}


@dataclass(frozen=True)
class Estimate:
    """For the fullest rank, in bytes; `efficiency` is the share of the ranks' time spent on work that counts."""

    parameters: int
    states: int
    activations: int
    efficiency: float

    @property
    def memory(self) -> int:
        return self.states + self.activations


def estimate(shape: ModelShape, *, training: Training, layout: Layout) -> Estimate:
    """The memory and relative efficiency of `layout`."""
    parameters = max(_rank_parameters(shape, layout))
    states = parameters * _STATE_BYTES[training.precision] // layout.dp_shard
    if layout.dp > 1:
        # Gathered parameters; in a pipeline they stay gathered, and so do the accumulated gradients.
        gathered = parameters if layout.pp > 1 else 2 * shape.block_parameters + shape.vocab * shape.dim
        states += gathered * _COMPUTE_BYTES[training.precision] + (4 * parameters if layout.pp > 1 else 0)
    microbatches = training.fewest_microbatches
    return Estimate(
        parameters=parameters,
        states=states,
        activations=_activations(shape, training, layout, layout.rounds(microbatches)),
        efficiency=_efficiency(layout, microbatches),
    )


def _rank_parameters(shape: ModelShape, layout: Layout) -> list[int]:
    layers = split_layers(shape.layers, layout.stages)
    sizes = []
    for pp_rank in range(layout.pp):
        stages = layout.stages_of(pp_rank)
        size = sum(len(layers[stage]) for stage in stages) * shape.block_parameters
        ends = (0 in stages) + (layout.stages - 1 in stages)
        # Tied embeddings are one parameter where one stage has both ends, and one on each of two stages.
        size += shape.vocab * shape.dim * (1 if shape.tied and layout.stages == 1 else ends)
        sizes.append(size)
    return sizes


def _activations(shape: ModelShape, training: Training, layout: Layout, rounds: int) -> int:
    """Of the microbatches in flight on the first pipeline rank, and the logits of one."""
    width = _COMPUTE_BYTES[training.precision]
    kv = shape.kv_heads * shape.head_dim
    a_token = width * (6 * shape.dim + 2 * kv + 4 * shape.hidden + 2 * shape.heads)
    layers = max(len(part) for part in split_layers(shape.layers, layout.stages)) * layout.stages_per_rank
    if layout.pp == 1:
        in_flight: float = 1
    elif layout.stages_per_rank == 1:
        in_flight = min(rounds, layout.pp)
    else:
        in_flight = min(rounds, layout.pp + (layout.pp - 1) / layout.stages_per_rank)
    tokens = training.microbatch * training.longest_sequence
    return int(tokens * (a_token * layers * in_flight + 3 * width * shape.vocab))


def _efficiency(layout: Layout, microbatches: int) -> float:
    """Work over time: the pipeline's bubble, and rounds in which some ranks have no microbatch."""
    rounds = layout.rounds(microbatches)
    bubble = (layout.pp - 1) / (layout.stages_per_rank * rounds + layout.pp - 1)
    return (1 - bubble) * microbatches / (rounds * layout.dp)
