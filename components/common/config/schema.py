"""The run config's keys. Cross-key rules are in `rules`; reading, sources and messages are in `load`.

Docstrings below the keys are the JSON schema's descriptions: editors show them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, ConfigDict

from shardline.components.common.config.data_schema import (
    MOST_STEPS,
    Corpus,
    Sharding,
    Tokenizer,
)
from shardline.components.common.config.fields import OBJECT, Section, Size, free, identity
from shardline.components.common.config.kubeflow_schema import Kubeflow
from shardline.components.common.config.kubernetes_schema import Kubernetes
from shardline.components.common.config.presets import PRESETS, ModelShape, RopeScaling
from shardline.components.common.config.training_schema import Training
from shardline.components.common.series import DEFAULT_PORT

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
    model_config = ConfigDict(serialize_by_alias=True)

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
    # A word of Python's own.
    class_: str | None = identity(None, alias="class", pattern=rf"^{OBJECT}$")
    """A model of your own as `module:name`, in place of the Llama-style decoder: docs/extending.md."""
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


class Elastic(Section):
    max_restarts: int = free(3, ge=0, le=1_000_000)
    """How often, in a row and without a step saved in between, a lost group of workers is started again before the run
    gives up."""
    restart_window: int = free(24 * 3600, ge=1, le=366 * 24 * 3600)
    """Seconds in which a run may be started again `restarts_in_window` times."""
    restarts_in_window: int = free(100, ge=0, le=1_000_000)
    """How often within `restart_window` a lost group of workers is started again, with or without progress."""
    set_aside_after: int = free(3, ge=0, le=1_000_000)
    """Losses within `restart_window` on the same node, or of processes there, after which training does without it; 0
    never."""
    timeout: int = free(300, ge=5, le=7 * 24 * 3600)
    """Seconds without an answer after which a peer counts as lost."""
    grace: int = free(60, ge=0, le=24 * 3600)
    """Seconds that training has, when it is asked to end by SIGTERM, to finish its step and save; a second one ends it
    at once."""
    snapshots: int | Literal["auto"] = free("auto")
    """Optimizer steps between two snapshots in the machines' memory; auto takes them so often that they cost less than
    1 % of the time; 0 none."""


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
    port: int | Literal["auto"] = free("auto")
    """The port at which agents serve metrics for Prometheus, and their health: `auto` is 9464 for `shardline worker`
    and none for `run` and `train`; 0 is none. Where it is in use, another one is taken."""

    @property
    def worker_port(self) -> int:
        """That of `shardline worker`."""
        return DEFAULT_PORT if self.port == "auto" else self.port

    @property
    def local_port(self) -> int:
        """That of `run` and `train`."""
        return 0 if self.port == "auto" else self.port


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
