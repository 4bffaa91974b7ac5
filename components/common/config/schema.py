"""The run config's keys. Cross-key rules are in `rules`; reading, sources and messages are in `load`.

Docstrings below the keys are the JSON schema's descriptions: editors show them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from shardline.components.common.config.data_schema import (
    MOST_STEPS,
    Corpus,
    Mixture,
    Sharding,
    Skip,
    Stage,
    Tokenizer,
    WholeStage,
)
from shardline.components.common.config.fields import Section, Size, extendable, free, identity
from shardline.components.common.config.presets import PRESETS, ModelShape, RopeScaling
from shardline.components.common.config.schedules import ScheduleName

PresetName = Literal["tiny", "small", "125m", "1b", "llama3-8b", "llama3-70b", "llama3-405b"]


class Rope(Section):
    """Llama 3.1's stretching of the rotary embedding to longer contexts, under the names of its config.json."""

    factor: float = identity(1.0, ge=1)
    """What the lowest frequencies are divided by; 1 leaves all of them as they are."""
    low_freq_factor: float = identity(1.0, gt=0)
    high_freq_factor: float = identity(4.0, gt=0)
    """Frequencies of fewer turns within `original_max_positions` than the first are divided, of more than the second
    left alone, and those between them go from one to the other."""
    original_max_positions: int = identity(8192, ge=8, le=1 << 32)
    """The longest sequence before the stretching."""

    def scaling(self) -> RopeScaling | None:
        return None if self.factor == 1 else RopeScaling(**self.model_dump())


#: The keys of `model` that are a size or a number of the shape, as ModelShape calls them.
SIZES = ("layers", "dim", "heads", "kv_heads", "hidden", "rope_theta", "norm_eps", "max_positions")


class Model(Section):
    url: str | None = identity(None, min_length=1)
    """A folder or URL of a Hugging Face Llama model to start from: config.json and safetensors. Its config.json gives
    all sizes, so none is set beside it."""
    fingerprint: str | None = identity(None, pattern=r"^blake2b-[0-9a-f]{32}$")
    """Of the model at `url`; filled in when the run begins, and checked whenever the model is read."""
    preset: PresetName = identity("tiny")
    """The shape to start from, without `url`; each key below replaces one of its sizes."""
    layers: int | None = identity(None, ge=1, le=10_000)
    dim: int | None = identity(None, ge=8, le=1 << 20)
    heads: int | None = identity(None, ge=1, le=1 << 16)
    kv_heads: int | None = identity(None, ge=1, le=1 << 16)
    hidden: int | None = identity(None, ge=8, le=1 << 22)
    head_dim: int | None = identity(None, ge=2, le=1 << 16)
    """The size of a head; dim / heads unless set."""
    vocab: int | None = identity(None, ge=257, le=1 << 24)
    """Rows of the embedding; the tokenizer's vocabulary unless set."""
    tie_embeddings: bool | None = identity(None)
    """Whether the output head is the embedding; they are apart unless set."""
    rope_theta: float | None = identity(None, gt=0)
    rope_scaling: Rope = identity(Rope())
    norm_eps: float | None = identity(None, gt=0)
    max_positions: int | None = identity(None, ge=8, le=1 << 32)
    attention: Literal["document", "causal"] = identity("document")
    """Whether a token attends to its own document alone, with positions counted in it, or to the whole block."""

    @property
    def is_open(self) -> bool:
        """Whether the sizes are yet to be read from the model at `url`."""
        return self.url is not None and any(getattr(self, name) is None for name in (*SIZES, "vocab", "fingerprint"))

    def shape(self, vocab: int) -> ModelShape:
        """The sizes that result, for a tokenizer of `vocab` tokens.

        Raises:
            RuntimeError: the model is open: `common.pretrained` has not read its sizes.
        """
        if self.is_open:
            raise RuntimeError(f"the sizes of the model at {self.url} have not been read")
        preset = PRESETS[self.preset]
        chosen = {name: getattr(self, name) for name in SIZES}
        sizes = {name: getattr(preset, name) if value is None else value for name, value in chosen.items()}
        return ModelShape(
            vocab=self.vocab or vocab,
            head_width=self.head_dim,
            rope_scaling=self.rope_scaling.scaling(),
            tied=bool(self.tie_embeddings),
            **sizes,
        )


class Optimizer(Section):
    name: Literal["adamw"] = identity("adamw")
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
    precision: Literal["fp32", "bf16", "fp64", "float8"] = identity("fp32")
    """Of parameters and activations in the step; bf16 keeps fp32 master weights and reduces in fp32."""
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


class Elastic(Section):
    max_restarts: int = free(3, ge=0, le=1_000_000)
    """How often a failed group of workers is started again before the run gives up."""
    timeout: int = free(300, ge=5, le=7 * 24 * 3600)
    """Seconds without an answer after which a peer counts as lost."""


class Evaluation(Section):
    prompts: list[str] = free(["The ", "def "])
    """Texts that the trained model continues."""
    new_tokens: int = free(64, ge=1, le=1 << 20)
    temperature: float = free(0.8, ge=0, le=1000)
    """0 always takes the likeliest token."""
    compare: bool = free(True)
    """Set the model's bits per byte beside those of gzip -9 and xz on the same text."""


class Gate(Section):
    max_bits_per_byte: float | None = free(None, gt=0)
    """Refuse a model that needs more bits per byte of held-out text than this."""


class Monitoring(Section):
    log_every: int = free(1, ge=1, le=MOST_STEPS)
    """Optimizer steps between two metric lines."""
    flush_seconds: float = free(5.0, gt=0, le=3600)
    """The longest time that an event or a metric stays in memory."""


class Cache(Section):
    """Decoded row groups on the disk or in the memory of a node, for all its ranks: each is fetched once a node."""

    use: Literal["remote", "always", "never"] = free("remote")
    """For which storage: that at the other end of a network, any, or none."""
    folder: str = free("auto", min_length=1)
    """A folder of the node, such as /dev/shm or an emptyDir; `auto` is shardline in XDG_CACHE_HOME or in ~/.cache."""
    size: Size = free(16 << 30)
    """Bytes that it may fill; what was used least recently makes room."""


class Resources(Section):
    processes: int | Literal["auto"] = free("auto")
    """Training processes on this machine; `auto` is one a device, or two on a machine without."""
    device: Literal["auto", "cpu", "cuda"] = free("auto")
    memory: Size | None = free(None)
    """Memory of a device, such as 80GiB: no layout that needs more is chosen; null does not limit."""
    cache: Cache = free(Cache())


class Kubernetes(Section):
    image: str | None = free(None)
    """The container image of the pipeline's steps: `shardline compile` needs it."""


class Kubeflow(Section):
    pipeline: str = free("shardline", pattern=r"^[a-z0-9]([-a-z0-9]{0,118}[a-z0-9])?$")
    """The name under which the pipeline appears."""


def _corpus(value: object) -> object:
    return {"urls": value} if isinstance(value, str | list) else value


class RunConfig(Section):
    """One run of shardline: from a corpus to a trained and evaluated model."""

    version: Literal[1] = free()
    """The version of this format."""
    run: str = free(pattern=r"^[a-z0-9]([-a-z0-9]{0,48}[a-z0-9])?$")
    """The run's name: lower-case letters, digits and hyphens. It names the run's folder."""
    storage: str = free(min_length=1)
    """The folder or fsspec URL below which data sets and runs lie."""
    corpus: Annotated[Corpus, BeforeValidator(_corpus, json_schema_input_type=str | list[str] | Corpus)] = identity()
    """The text to train on: a URL, a list of URLs, or a mapping."""
    tokenizer: Tokenizer = identity(Tokenizer())
    sharding: Sharding = identity(Sharding())
    model: Model = identity(Model())
    training: Training = identity()
    elastic: Elastic = free(Elastic())
    evaluation: Evaluation = free(Evaluation())
    gate: Gate = free(Gate())
    monitoring: Monitoring = free(Monitoring())
    resources: Resources = free(Resources())
    kubernetes: Kubernetes = free(Kubernetes())
    kubeflow: Kubeflow = free(Kubeflow())

    @property
    def block(self) -> int:
        """Tokens in a block of the data set."""
        return self.sharding.block or self.training.longest_sequence

    @property
    def first_mixture(self) -> dict[str, float]:
        """The mixture that training begins with: without one, all sources but those appended are one stream."""
        return self.training.mixture or {"+".join(self.corpus.named_sources(appended=False)): 1}
