"""Which part of which block is which sample: the global order. Pure numpy; nothing grows with the samples.

Called by the loader, and by whatever wants to know what a sample was. The order is a function of the data set's
geometry, the data policy and the global sample index; no rank, worker or layout appears in it.

A stage's draws are numbered from 0; its mixture says which stream each comes from (see `mixture`), and the stream's own
order which block (see `stream`). A stream's draws run on over epochs and over stages: what is counted is its tokens, so
that a stage may cut blocks into shorter samples. When a stage with longer samples begins in the middle of one, that
sample is given as a whole, with the targets that were given before hidden: none is lost, none counts twice.

The data position is counted in tokens, padding and hidden ones included: the sum of global batch x sequence over the
steps done, and what was skipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from shardline.components.common.errors import DamagedData
from shardline.components.sharding.blocks import I64, distinct
from shardline.components.sharding.order.geometry import Geometry
from shardline.components.sharding.order.mixture import Pattern
from shardline.components.sharding.order.policy import DataPolicy, Skip, Stage
from shardline.components.sharding.order.stream import StreamOrder

_NEVER = np.int64(-1)


@dataclass(frozen=True, eq=False, kw_only=True)
class Places:
    """Where samples lie, one entry each.

    Attributes:
        blocks: int64, the block's number within the split.
        offsets: int64, the first of the sample's tokens in the block.
        hidden: int64, how many of the sample's first targets were given before, and don't count.
    """

    blocks: I64
    offsets: I64
    hidden: I64


class StageOrder:
    """The order within one stage.

    Attributes:
        stage: what it is; `last`: the first optimizer step after it, None for the last stage.
        first_index: the global sample index of its first draw; `first_position`: the data position where it begins.
    """

    def __init__(
        self,
        stage: Stage,
        streams: dict[str, StreamOrder],
        *,
        block: int,
        last: int | None,
        skips: tuple[Skip, ...],
        bases: Mapping[str, int],
        first_index: int,
        first_position: int,
    ) -> None:
        self.stage = stage
        self.last = last
        self.first_index = first_index
        self.first_position = first_position
        self.names = [name for name, _ in stage.mixture]
        self._streams = [streams[name] for name in self.names]
        self._pattern = Pattern(list(stage.weights.values()))
        self._block = block
        self._bases = [bases[name] for name in self.names]
        mine = [skip for skip in skips if stage.step <= skip.step and (last is None or skip.step < last)]
        self._skip_steps = np.array([skip.step for skip in mine], np.int64)
        self._skipped = np.cumsum([0, *(skip.batches for skip in mine)], dtype=np.int64)

    # steps and draws

    def draws_at(self, steps: I64) -> I64:
        """The number of the first draw of each optimizer step."""
        skipped = self._skipped[np.searchsorted(self._skip_steps, steps, side="right")]
        draws: I64 = (steps - self.stage.step + skipped) * self.stage.global_batch
        return draws

    def steps_of(self, draws: I64) -> I64:
        """The optimizer step that uses each draw; -1 for one that is skipped."""
        batches = draws // self.stage.global_batch
        # Batches by number: a skip takes up those from its own place on.
        places = self._skip_steps - self.stage.step + self._skipped[:-1]
        behind = np.searchsorted(places, batches, side="right")
        steps: I64 = batches - self._skipped[behind] + self.stage.step
        before = np.maximum(behind - 1, 0)
        if len(places):
            steps = np.where((behind > 0) & (steps < self._skip_steps[before]), _NEVER, steps)
        return steps

    @property
    def draws(self) -> int | None:
        """How many draws the stage has, skipped ones included; None for the last one, which has no end."""
        if self.last is None:
            return None
        return (self.last - self.stage.step + int(self._skipped[-1])) * self.stage.global_batch

    # draws and streams

    def split(self, draws: I64) -> tuple[I64, I64]:
        """For draws: the number of the stream in `names`, and which of its draws in this stage it is."""
        streams, ordinals = self._pattern.split(draws)
        return streams.astype(np.int64), ordinals

    def join(self, stream: int, ordinals: I64) -> I64:
        """The inverse of `split`."""
        return self._pattern.join(stream, ordinals)

    def drawn_before(self, draw: int) -> list[int]:
        """For each stream, how many of the stage's draws before `draw` are its own."""
        return [self._pattern.drawn(stream, draw) for stream in range(len(self.names))]

    def segment_end(self, stream: int, ordinal: int) -> int:
        """The first draw of a stream after the window of row groups, or the stage, that `ordinal` is in."""
        block = (self._aligned(stream) + ordinal * self.stage.sequence) // self._block
        end_tokens = self._streams[stream].window_end(block) * self._block - self._aligned(stream)
        end = -(-end_tokens // self.stage.sequence)
        draws = self.draws
        return end if draws is None else min(end, self._pattern.drawn(stream, draws))

    def places(self, stream: int, ordinals: I64) -> Places:
        """Where a stream's draws lie."""
        tokens = self._aligned(stream) + ordinals * self.stage.sequence
        blocks, offsets = np.divmod(tokens, self._block)
        hidden = np.where(ordinals == 0, self._bases[stream] - self._aligned(stream), 0)
        return Places(blocks=self._streams[stream].blocks_of(blocks), offsets=offsets, hidden=hidden)

    def _aligned(self, stream: int) -> int:
        """Where, in tokens of the stream, its first sample in this stage begins."""
        return self._bases[stream] // self.stage.sequence * self.stage.sequence

    def bases_after(self) -> dict[str, int]:
        """For each of its streams, the tokens given out when the stage is over."""
        draws = self.draws or 0
        after = {}
        for number, name in enumerate(self.names):
            drawn = self._pattern.drawn(number, draws)
            after[name] = self._aligned(number) + drawn * self.stage.sequence if drawn else self._bases[number]
        return after


class SampleOrder:
    """The order of a data set's streams under a policy.

    Args:
        streams: the geometry of each stream that the policy names.
    """

    def __init__(self, streams: Mapping[str, Geometry], policy: DataPolicy) -> None:
        self.policy = policy
        self.stages: list[StageOrder] = []
        orders = {
            name: StreamOrder(streams[name], name=name, seed=policy.seed, window=policy.window)
            for name in policy.streams
        }
        bases = dict.fromkeys(orders, 0)
        index = position = 0
        ends = [stage.step for stage in policy.stages[1:]]
        for stage, last in zip(policy.stages, [*ends, None], strict=True):
            order = StageOrder(
                stage,
                orders,
                block=policy.block,
                last=last,
                skips=policy.skips,
                bases=bases,
                first_index=index,
                first_position=position,
            )
            self.stages.append(order)
            bases = {**bases, **order.bases_after()}
            index += order.draws or 0
            position += (order.draws or 0) * stage.sequence

    def stage_at(self, step: int) -> StageOrder:
        """The stage that optimizer step `step` is in."""
        return next(order for order in reversed(self.stages) if order.stage.step <= step)

    def stage_of_index(self, index: int) -> StageOrder:
        """The stage that a global sample index is in."""
        return next(order for order in reversed(self.stages) if order.first_index <= index)

    def position_at(self, step: int) -> int:
        """The data position in front of an optimizer step, before what is skipped there."""
        if step == 0:
            return 0
        order = self.stage_at(step - 1)
        draws = int(order.draws_at(np.array([step - 1]))[0]) + order.stage.global_batch
        return order.first_position + draws * order.stage.sequence

    def step_at(self, position: int) -> int:
        """The optimizer step that a data position is in front of.

        Raises:
            DamagedData: no step begins there.
        """
        order = next(order for order in reversed(self.stages) if order.first_position <= position)
        draws = (position - order.first_position) // order.stage.sequence
        step = int(order.steps_of(np.array([max(0, draws - 1)]))[0]) + (draws > 0)
        step = max(step, order.stage.step)
        if self.position_at(step) != position:
            raise DamagedData(f"no optimizer step of the data policy begins at data position {position}")
        return step

    def samples_of(self, step: int) -> tuple[I64, Places]:
        """The global sample indices of an optimizer step, and where they lie, in order."""
        order = self.stage_at(step)
        draws = int(order.draws_at(np.array([step]))[0]) + np.arange(order.stage.global_batch, dtype=np.int64)
        return order.first_index + draws, self._places(order, draws)

    def find(self, index: int) -> tuple[int, Places]:
        """For a global sample index: the optimizer step that uses it (-1: none), and where it lies."""
        order = self.stage_of_index(index)
        draws = np.array([index - order.first_index], np.int64)
        return int(order.steps_of(draws)[0]), self._places(order, draws)

    def _places(self, order: StageOrder, draws: I64) -> Places:
        streams, ordinals = order.split(draws)
        out = Places(**{name: np.zeros(len(draws), np.int64) for name in ("blocks", "offsets", "hidden")})
        for stream in distinct(streams).tolist():
            here = np.flatnonzero(streams == stream)
            places = order.places(stream, ordinals[here])
            out.blocks[here], out.offsets[here], out.hidden[here] = places.blocks, places.offsets, places.hidden
        return out
