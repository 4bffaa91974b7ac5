"""What a layout needs and how its time compares, from the model's sizes alone. Pure arithmetic; no torch.

Memory follows "Reducing Activation Recomputation in Large Transformer Models" (Korthikanti et al., arXiv:2205.05198)
and "ZeRO" (Rajbhandari et al., arXiv:1910.02054), adapted to this model's layers; the pipeline's bubble is that of
"Efficient Large-Scale Language Model Training on GPU Clusters" (Narayanan et al., arXiv:2104.04473).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardline.components.common.config.presets import ModelShape
from shardline.components.common.config.schedules import SCHEDULES
from shardline.components.common.config.training_schema import Training
from shardline.components.planning.layout import Layout, split_layers

#: Bytes a parameter: the master value, its gradient and AdamW's two moments.
_STATE_BYTES = {"fp32": 16, "bf16": 16, "fp64": 32, "float8": 16}
#: What float8 keeps for the backward pass is what it rounds, as torchao rounds it again there.
_COMPUTE_BYTES = {"fp32": 4, "bf16": 2, "fp64": 8, "float8": 2}
#: Ways to recompute, the cheapest first, and the share of the work that is not done twice. A forward pass is a third of
#: a step; the cheap part of it, all but matrix products and attention, is small beside them (arXiv:2205.05198).
_USEFUL = {"none": 1.0, "selective": 0.97, "full": 0.75}
RECOMPUTATIONS = tuple(_USEFUL)


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
    parameters = max(_rank_parameters(shape, layout)) // layout.tp
    shards = layout.dp_shard * layout.cp
    states = parameters * _STATE_BYTES[training.precision] // shards
    if layout.dp * layout.cp > 1:
        # Gathered parameters; without resharding they stay gathered, and in a pipeline so do the summed gradients.
        largest = (2 * shape.block_parameters + shape.vocab * shape.dim) // layout.tp
        gathered = min(largest, parameters) if layout.reshards else parameters
        states += gathered * _COMPUTE_BYTES[training.precision] + (4 * parameters if layout.pp > 1 else 0)
    microbatches = training.fewest_microbatches
    return Estimate(
        parameters=parameters,
        states=states,
        activations=_activations(shape, training, layout, layout.rounds(microbatches)),
        efficiency=_efficiency(layout, microbatches) * _USEFUL[layout.recompute],
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
    """Of the microbatches in flight on the fullest pipeline rank, one layer being computed, and the logits of one."""
    width = _COMPUTE_BYTES[training.precision]
    kept = _kept_a_token(shape, layout)
    # Keys and values of the whole sequence, gathered in each layer.
    gathered = 2 * shape.kv_heads * shape.head_dim * layout.cp // layout.tp if layout.cp > 1 else 0
    live = _kept_a_token(shape, replace(layout, recompute="none")) + gathered
    if layout.recompute != "full":
        kept += gathered
    layers = max(len(part) for part in split_layers(shape.layers, layout.stages)) * layout.stages_per_rank
    tokens = training.microbatch * training.longest_sequence // layout.cp
    elements = kept * layers * _in_flight(layout, rounds) + 3 * shape.vocab / layout.tp
    return int(tokens * width * (elements + (live if layout.recompute != "none" else 0)))


def _kept_a_token(shape: ModelShape, layout: Layout) -> int:
    """Elements that a layer keeps of a token for the backward pass.

    Between the layers a token's hidden state is on one tensor-parallel rank; the normalised input of attention and of
    the feed-forward layer is gathered.
    """
    kv = shape.kv_heads * shape.head_dim
    if layout.recompute == "full":
        return shape.dim // layout.tp
    if layout.recompute == "selective":  # the layer's input and what comes out of each matrix product
        return (5 * shape.dim + 2 * kv + 2 * shape.hidden) // layout.tp
    return 2 * shape.dim + (4 * shape.dim + 2 * kv + 4 * shape.hidden + 2 * shape.heads) // layout.tp


def _in_flight(layout: Layout, rounds: int) -> float:
    """Microbatches whose activations a pipeline rank holds at once, each of all its stages."""
    if layout.pp == 1:
        return 1
    if layout.schedule in ("GPipe", "LoopedBFS"):
        return rounds
    if layout.schedule == "Interleaved1F1B":
        return min(rounds, layout.pp + (layout.pp - 1) / layout.stages_per_rank)
    if layout.schedule == "DualPipeV":
        return min(rounds, layout.pp + 0.5)
    return min(rounds, layout.pp)


def _efficiency(layout: Layout, microbatches: int) -> float:
    """Work over time: the pipeline's bubble, and rounds in which some ranks have no microbatch."""
    rounds = layout.rounds(microbatches)
    # A microbatch on one stage is one unit of time. Where the weights' third of it fills gaps, a third of the bubble
    # is left (arXiv:2401.10241, with equal times).
    thirds = 3 if SCHEDULES[layout.schedule].splits_backward else 1
    bubble = (layout.pp - 1) / (thirds * layout.stages_per_rank * rounds + layout.pp - 1)
    return (1 - bubble) * microbatches / (rounds * layout.dp)
