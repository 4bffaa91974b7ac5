"""The data policy: all that the order depends on beside the data set. Part of a run's identity, kept in checkpoints.

It may be changed in the middle of a run for the steps to come, never for those that were done.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from shardline.components.common.config import RunConfig
from shardline.components.common.config.data_schema import stream_name
from shardline.components.common.errors import DamagedData

POLICY_VERSION = 2


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What holds from one optimizer step on, up to the next stage.

    Attributes:
        step: its first optimizer step.
        global_batch: samples in a step; `sequence`: tokens in a sample.
        mixture: each stream with its weight, a decimal number as text, which JSON keeps exactly. A stream is a
            corpus source, or several joined by "+", which are shuffled as one.
    """

    step: int
    global_batch: int
    sequence: int
    mixture: tuple[tuple[str, str], ...]

    @property
    def weights(self) -> dict[str, Fraction]:
        return {stream: Fraction(weight) for stream, weight in self.mixture}


@dataclass(frozen=True, kw_only=True)
class Skip:
    """Before optimizer step `step`, the samples of `batches` global batches are passed over."""

    step: int
    batches: int


@dataclass(frozen=True, kw_only=True)
class DataPolicy:
    """See above.

    Attributes:
        seed: of all permutations.
        window: row groups that are shuffled together.
        block: tokens in a block, of which the sequence of each stage is a whole fraction.
        stages: in the order of their steps, the first at 0; `skips`: in the order of theirs.
    """

    seed: int
    window: int
    block: int
    stages: tuple[Stage, ...]
    skips: tuple[Skip, ...] = ()
    version: int = POLICY_VERSION

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> DataPolicy:
        """Raises DamagedData for a policy of another version, or none."""
        try:
            body = json.loads(text)
            version = body["version"]
            if version == POLICY_VERSION:
                return _parse(body)
        except (ValueError, TypeError, KeyError) as error:
            raise DamagedData(f"not a data policy: {text[:80]}", hint="go on from another checkpoint") from error
        raise DamagedData(
            f"the data policy is of version {version}; this release knows version {POLICY_VERSION}",
            hint="use the release of shardline that wrote it, or a newer one",
        )

    def before(self, step: int) -> DataPolicy:
        """What of the policy the optimizer steps before `step` depend on."""
        return DataPolicy(
            seed=self.seed,
            window=self.window,
            block=self.block,
            stages=tuple(stage for stage in self.stages if stage.step < step),
            skips=tuple(skip for skip in self.skips if skip.step < step),
        )

    @property
    def streams(self) -> tuple[str, ...]:
        """Every stream of every stage, each once, in the order in which they appear."""
        return tuple(dict.fromkeys(stream for stage in self.stages for stream, _ in stage.mixture))


def _parse(body: dict[str, Any]) -> DataPolicy:
    stages = tuple(
        Stage(**{**stage, "mixture": tuple((str(name), str(weight)) for name, weight in stage["mixture"])})
        for stage in body["stages"]
    )
    return DataPolicy(**{**body, "stages": stages, "skips": tuple(Skip(**skip) for skip in body["skips"])})


def policy_of(config: RunConfig) -> DataPolicy:
    """The data policy that `config` asks for."""
    training = config.training
    stages = [
        Stage(
            step=stage.at,
            global_batch=stage.global_batch,
            sequence=stage.sequence,
            mixture=_mixture(stage.mixture or config.first_mixture),
        )
        for stage in training.every_stage()
    ]
    return DataPolicy(
        seed=training.seed,
        window=training.window,
        block=config.block,
        stages=tuple(stages),
        skips=tuple(Skip(step=skip.at, batches=skip.batches) for skip in training.skip),
    )


def _mixture(weights: dict[str, float]) -> tuple[tuple[str, str], ...]:
    return tuple((stream_name(stream), repr(weight)) for stream, weight in weights.items())
