"""A parallel layout: how many ranks each axis has and how the model is cut. Pure integers; no torch.

Called by the planner, which chooses one, and by training, which builds it. Ranks are numbered with the pipeline axis
outermost and the sharding axis innermost: `rank = (pp_rank * dp_replicate + replicate_rank) * dp_shard + shard_rank`,
so that the ranks that talk most are next to each other.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A resolved layout. `dp` is the number of data-parallel ranks, `stages` that of model stages."""

    dp_replicate: int = 1
    dp_shard: int = 1
    pp: int = 1
    schedule: str = "1F1B"
    stages_per_rank: int = 1

    @property
    def world(self) -> int:
        return self.dp_replicate * self.dp_shard * self.pp

    @property
    def dp(self) -> int:
        return self.dp_replicate * self.dp_shard

    @property
    def stages(self) -> int:
        return self.pp * self.stages_per_rank

    def rounds(self, microbatches: int) -> int:
        """Microbatches that each data-parallel rank runs for a global batch of `microbatches`."""
        return -(-microbatches // self.dp)

    def place(self, rank: int) -> tuple[int, int]:
        """(pp_rank, dp_rank) of `rank`."""
        return divmod(rank, self.dp)

    def stages_of(self, pp_rank: int) -> list[int]:
        """The stages on a pipeline rank, in the order they are run: looped, as interleaved schedules need it."""
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
