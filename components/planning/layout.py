"""A parallel layout: how many ranks each axis has and how the model is cut. Pure integers; no torch.

Called by the planner, which chooses one, and by training, which builds it. Ranks are numbered with the pipeline axis
outermost and the tensor axis innermost, so that the ranks that talk most are next to each other:
`rank = (((pp * dp_replicate + replicate) * dp_shard + shard) * cp + context) * tp + tensor`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from shardline.components.common.config.schedules import SCHEDULES


class Place(NamedTuple):
    """A rank's place on each axis; `dp` counts over dp_replicate and dp_shard."""

    pp: int
    dp: int
    cp: int
    tp: int

    @property
    def leads_slice(self) -> bool:
        """One rank of those of a stage that work on the same samples."""
        return self.cp == self.tp == 0

    @property
    def leads_stage(self) -> bool:
        """One rank of those that hold parts of the same parameters."""
        return self.dp == 0 and self.leads_slice


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A resolved layout. `dp` is the number of data-parallel ranks, `stages` that of model stages.

    Attributes:
        reshard: whether parameters that dp_shard gathered are freed after the forward pass. Never in a pipeline, where
            each microbatch would gather them anew, and where with a backward pass that is split torch 2.13 loses
            gradients without a word: ask `reshards`.
    """

    dp_replicate: int = 1
    dp_shard: int = 1
    tp: int = 1
    cp: int = 1
    pp: int = 1
    schedule: str = "1F1B"
    stages_per_rank: int = 1
    recompute: str = "none"
    reshard: bool = True

    @property
    def world(self) -> int:
        return self.dp * self.cp * self.tp * self.pp

    @property
    def dp(self) -> int:
        return self.dp_replicate * self.dp_shard

    @property
    def stages(self) -> int:
        return self.pp * self.stages_per_rank

    @property
    def reshards(self) -> bool:
        return self.reshard and self.pp == 1

    def rounds(self, microbatches: int) -> int:
        """Microbatches that each data-parallel rank runs for a global batch of `microbatches`."""
        return -(-microbatches // self.dp)

    def place(self, rank: int) -> Place:
        rank, tp = divmod(rank, self.tp)
        rank, cp = divmod(rank, self.cp)
        return Place(*divmod(rank, self.dp), cp, tp)

    def stages_of(self, pp_rank: int) -> list[int]:
        """The stages on a pipeline rank, in the order they are run: looped, or as a V where the schedule needs it."""
        if self.pp > 1 and SCHEDULES[self.schedule].v_shaped:
            return [pp_rank, self.stages - 1 - pp_rank]
        return [pp_rank + turn * self.pp for turn in range(self.stages_per_rank)]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Layout:
        return cls(**data)

    def __str__(self) -> str:
        parts = [f"{name}={value}" for name, value in self.to_json().items() if isinstance(value, int) and value > 1]
        if self.pp > 1:
            parts.insert(0, self.schedule)
        if self.recompute != "none":
            parts.append(f"recompute={self.recompute}")
        return " ".join(parts) if parts else "one process"


def split_layers(layers: int, stages: int) -> list[range]:
    """The layers of each stage.

    The embedding and the output head count as a layer each, so that the first and the last stage get fewer; every
    stage has at least one layer.

    Raises:
        ValueError: there are more stages than layers.
    """
    if stages > layers:
        raise ValueError(f"{stages} stages need as many layers; there are {layers}")
    if stages == 1:
        return [range(layers)]
    weights = layers + 2
    sizes = [weights // stages + (index < weights % stages) for index in range(stages)]
    # The larger shares go to the middle stages: the ends carry the embedding and the head as well.
    sizes.sort()
    order = sorted(range(stages), key=lambda index: (min(index, stages - 1 - index), index))
    share = dict(zip(order, sizes, strict=True))
    counts = [share[index] - (index == 0) - (index == stages - 1) for index in range(stages)]
    while min(counts) < 1:
        counts[counts.index(max(counts))] -= 1
        counts[counts.index(min(counts))] += 1
    starts = [sum(counts[:index]) for index in range(stages)]
    return [range(start, start + count) for start, count in zip(starts, counts, strict=True)]
