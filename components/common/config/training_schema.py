"""The keys of `training`. Docstrings below the keys are the JSON schema's descriptions, as in `schema`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from shardline.components.common.config.data_schema import MOST_STEPS, Mixture, Skip, Stage, WholeStage
from shardline.components.common.config.fields import OBJECT, Section, extendable, free, identity
from shardline.components.common.config.schedules import ScheduleName


class Optimizer(Section):
    name: str = identity("adamw", pattern=rf"^(adamw|{OBJECT})$")
    """`adamw`, or one of your own as `module:name`: docs/extending.md."""
    lr: float = identity(3e-4, gt=0, le=100)
    """The highest learning rate, reached at the end of the warm-up."""
    betas: list[Annotated[float, Field(ge=0, lt=1)]] = identity([0.9, 0.95], min_length=2, max_length=2)
    eps: float = identity(1e-8, gt=0)
    weight_decay: float = identity(0.1, ge=0)
    """Applied to matrices, not to norms."""
    clip: float | None = identity(1.0, gt=0)
    """The largest gradient norm; null does not clip."""


class Schedule(Section):
    warmup: int = identity(10, ge=0, le=MOST_STEPS)
    """Optimizer steps of linear warm-up."""
    decay: Literal["cosine", "constant"] = identity("cosine")
    decay_steps: int | None = identity(None, ge=1, le=MOST_STEPS)
    """The step at which the decay ends; unless set, the `training.steps` that the run began with."""
    floor: float = identity(0.1, ge=0, le=1)
    """The learning rate after the decay, as a share of the highest."""


class Layout(Section):
    """A constraint: what is `auto` is chosen for each generation from the processes there are."""

    dp_replicate: int | Literal["auto"] = free("auto")
    dp_shard: int | Literal["auto"] = free("auto")
    tp: int | Literal["auto"] = free("auto")
    """Tensor-parallel ranks, which share heads, hidden units and vocabulary, and between layers a sample's tokens."""
    cp: int | Literal["auto"] = free("auto")
    """Context-parallel ranks, which share the tokens of each sample."""
    pp: int | Literal["auto"] = free("auto")
    schedule: ScheduleName | Literal["auto"] = free("auto")
    """Of a pipeline; `auto` chooses between 1F1B and Interleaved1F1B."""
    stages_per_rank: int | Literal["auto"] = free("auto")
    """Model stages on each pipeline rank: 1 with GPipe and 1F1B, 2 with ZBVZeroBubble and DualPipeV, else 2 or more."""
    recompute: Literal["auto", "none", "selective", "full"] = free("auto")
    """Activations to compute again in the backward pass: those that are cheap, or whole layers; `auto` is the least
    that fits resources.memory."""
    reshard: bool | Literal["auto"] = free("auto")
    """Whether dp_shard frees gathered parameters after the forward pass; `auto` does, except in a pipeline."""


def _layout(value: object) -> object:
    return {} if value == "auto" else value


class Keep(Section):
    """A checkpoint stays if any of these holds it, or if it is pinned."""

    last: int = free(1, ge=1, le=MOST_STEPS)
    """How many of the newest."""
    every: int | None = free(None, ge=1, le=MOST_STEPS)
    """Those of every n-th optimizer step."""
    best: int | None = free(None, ge=1, le=MOST_STEPS)
    """How many of those with the lowest training loss, the mean of the last steps before them."""

    def __str__(self) -> str:
        rules = [f"the last {self.last}"]
        rules += [f"every {self.every} steps"] if self.every else []
        rules += [f"the best {self.best}"] if self.best else []
        return ", ".join(rules)


def _keep(value: object) -> object:
    return {"last": value} if isinstance(value, int) and not isinstance(value, bool) else value


class Checkpoint(Section):
    model_config = ConfigDict(serialize_by_alias=True)

    every: int = free(100, ge=1, le=MOST_STEPS)
    """Optimizer steps between checkpoints; the last step always has one."""
    # A word of Python's own.
    async_: bool = free(True, alias="async")
    """Whether training goes on while a checkpoint is written; it takes host memory for all that a process writes."""
    keep: Annotated[Keep | None, BeforeValidator(_keep, json_schema_input_type=int | Keep | None)] = free(None)
    """Which checkpoints stay: a number of the newest, or any of last, every and best; null keeps all."""


class Guard(Section):
    """What is done about a step whose loss cannot be right."""

    not_finite: Literal["skip", "stop"] = free("skip")
    """When the loss or a gradient is not finite: leave the update out and go on, or stop."""
    most_skipped: int = free(10, ge=1, le=MOST_STEPS)
    """Updates that may be left out in a row; training stops at the next."""
    spike: Literal["off", "report", "roll-back"] = free("report")
    """When the loss jumps: nothing; an event that names the documents; or the event, and training goes on from the last
    checkpoint before the spike, past its samples."""
    factor: float = free(6.0, gt=0, le=1000)
    """A jump is a loss so many standard deviations above the mean of the last `window` losses."""
    window: int = free(128, ge=8, le=1 << 16)
    pass_over: int = free(1, ge=0, le=MOST_STEPS)
    """Optimizer steps before the spike whose samples are passed over with it."""
    roll_backs: int = free(3, ge=1, le=1000)
    """How often a run rolls back; later spikes are reported."""


class Profile(Section):
    """Traces by torch.profiler, for Chrome's or Perfetto's viewer, in `profiles/` of the run folder."""

    at: int | None = free(None, ge=0, le=MOST_STEPS)
    """The optimizer step (from 0) with which it begins; null: none."""
    steps: int = free(3, ge=1, le=1000)
    ranks: list[Annotated[int, Field(ge=0)]] = free([0], min_length=1)
    """The ranks that write a trace each."""


class Parent(Section):
    """A checkpoint of another run, for a run to begin from."""

    run: str = identity(min_length=1)
    """The other run's folder or URL, or its name below `storage`."""
    step: int = identity(ge=1, le=MOST_STEPS)
    """The optimizer steps that are in the checkpoint."""
    weight: float = identity(1.0, gt=0, le=1e9)
    """What it counts in the mean of several checkpoints; their weights need not add up to 1."""
    position: bool = identity(False)
    """Whether step, data position and data policy are those of this one, where several do not agree on them."""
    fingerprint: str | None = identity(None, pattern=r"^blake2b-[0-9a-f]{32}$")
    """Of the checkpoint, which must then be this one."""


def _parents(value: object) -> object:
    return [value] if isinstance(value, dict) else value


class Training(Section):
    steps: int = extendable(ge=1, le=MOST_STEPS)
    """Optimizer steps in all."""
    global_batch: int = identity(ge=1, le=1 << 24)
    """Samples in an optimizer step, whatever the number of processes."""
    microbatch: int = identity(ge=1, le=1 << 24)
    """Samples in one forward pass; it divides `global_batch`."""
    sequence: int = identity(ge=8, le=1 << 20)
    """Tokens in a sample."""
    seed: int = identity(0, ge=0, lt=1 << 63)
    start: Annotated[list[Parent], BeforeValidator(_parents, json_schema_input_type=Parent | list[Parent])] = identity(
        []
    )
    """The checkpoint that the run begins from, with its optimizer and data position, instead of initial values; of
    several the mean."""
    precision: Literal["fp32", "bf16", "fp64", "float8"] = identity("fp32")
    """Of parameters and activations in the step; bf16 keeps fp32 master weights and reduces in fp32. float8 is bf16
    whose layers multiply in float8, on GPUs that can and with torchao."""
    window: int = identity(64, ge=1, le=1 << 20)
    """Row groups that are shuffled together: a larger window is closer to a full shuffle and reads further ahead."""
    mixture: Mixture | None = identity(None)
    """Samples from each corpus source, in proportion to these weights; null takes all sources together, each block
    once an epoch. Sources joined by `+` are one entry, shuffled together."""
    stages: list[Stage] = free([])
    """Changes of global batch, sequence or mixture at stated steps. Those to come may be changed, the past may not."""
    skip: list[Skip] = free([])
    """Samples to pass over, such as those in front of which the loss went astray."""
    optimizer: Optimizer = identity(Optimizer())
    schedule: Schedule = identity(Schedule())
    layout: Annotated[Layout, BeforeValidator(_layout, json_schema_input_type=Literal["auto"] | Layout)] = free(
        Layout()
    )
    """`auto`, or any of dp_replicate, dp_shard, tp, cp, pp, schedule, stages_per_rank, recompute, reshard."""
    compile: bool = free(False)
    """Compile each decoder layer with torch.compile."""
    checkpoint: Checkpoint = free(Checkpoint())
    gc_every: int = free(1000, ge=1, le=MOST_STEPS)
    """Optimizer steps after which all ranks collect Python's garbage, at the same time and at no other."""
    guard: Guard = free(Guard())
    profile: Profile = free(Profile())

    def every_stage(self) -> list[WholeStage]:
        """All stages with every value filled in, the first beginning at step 0."""
        found = [WholeStage(0, self.global_batch, self.sequence, self.mixture)]
        for stage in self.stages:
            last = found[-1]
            batch, sequence = stage.global_batch or last.global_batch, stage.sequence or last.sequence
            found.append(WholeStage(stage.at, batch, sequence, stage.mixture or last.mixture))
        return found

    @property
    def first_parent(self) -> Parent | None:
        """The one in `start` whose step and data position the run has; None for a run of its own."""
        return next((each for each in self.start if each.position), self.start[0] if self.start else None)

    @property
    def first_step(self) -> int:
        """The optimizer steps that are done when the run begins."""
        return self.first_parent.step if self.first_parent else 0

    @property
    def longest_sequence(self) -> int:
        """Tokens in a sample of the stage that has the longest."""
        return max(stage.sequence for stage in self.every_stage())

    @property
    def smallest_batch(self) -> int:
        """Samples in an optimizer step of the stage that has the fewest."""
        return min(stage.global_batch for stage in self.every_stage())

    @property
    def fewest_microbatches(self) -> int:
        """Microbatches in an optimizer step of that stage."""
        return self.smallest_batch // self.microbatch

    @property
    def tokens(self) -> int:
        """Tokens in all optimizer steps, padding included."""
        stages = self.every_stage()
        ends = [*(stage.at for stage in stages[1:]), self.steps]
        steps = [max(0, min(end, self.steps) - stage.at) for stage, end in zip(stages, ends, strict=True)]
        return sum(n * stage.global_batch * stage.sequence for n, stage in zip(steps, stages, strict=True))
