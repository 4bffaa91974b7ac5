"""The run config's keys. Cross-key rules are in `rules`; reading, sources and messages are in `load`.

Docstrings below the keys are the JSON schema's descriptions: editors show them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from shardline.components.common.config.fields import Section, Size, Urls, extendable, free, identity
from shardline.components.common.config.presets import PRESETS, ModelShape

PresetName = Literal["tiny", "small", "125m", "1b", "llama3-8b", "llama3-70b", "llama3-405b"]
ScheduleName = Literal["1F1B", "Interleaved1F1B"]
SourceName = Annotated[str, Field(pattern=r"^[a-z0-9]([-_a-z0-9]{0,48}[a-z0-9])?$")]
#: The name of the source that `corpus.urls` is.
UNNAMED = "corpus"
Mixture = dict[str, Annotated[float, Field(gt=0, le=1e9)]]

#: Folders of checkpoints have twelve digits; more than this is a slip of the hand.
MOST_STEPS = 1_000_000_000


def stream_name(sources: str) -> str:
    """The name of the stream that is `sources`, joined by "+" in any order."""
    return "+".join(sorted(sources.split("+")))


class Source(Section):
    urls: Urls = identity()
    """Files, folders or globs, local or at any fsspec URL; `stdlib:` is the standard library of this Python."""
    format: Literal["auto", "text", "jsonl", "parquet"] = identity("auto")
    """How files are read; `auto` goes by the ending (.jsonl, .ndjson, .parquet; anything else is text)."""
    text_field: str = identity("text", min_length=1)
    """The field (JSONL) or column (Parquet) that holds a document's text, or the response to a prompt."""
    prompt_field: str | None = identity(None, min_length=1)
    """The field or column of a prompt, which the model reads and is not trained to write."""


class AddedSource(Source):
    appended: bool = identity(False)
    """Whether it was added to a data set that existed: all of it is trained on, and what was there stays as it is."""


class Corpus(Section):
    urls: Urls | None = identity(None)
    """Files, folders or globs, local or at any fsspec URL; `stdlib:` is the standard library of this Python."""
    format: Literal["auto", "text", "jsonl", "parquet"] = identity("auto")
    """How files are read; `auto` goes by the ending (.jsonl, .ndjson, .parquet; anything else is text)."""
    text_field: str = identity("text", min_length=1)
    """The field (JSONL) or column (Parquet) that holds a document's text, or the response to a prompt."""
    prompt_field: str | None = identity(None, min_length=1)
    """The field or column of a prompt, which the model reads and is not trained to write."""
    sources: dict[SourceName, AddedSource] = identity({})
    """Corpora by name: several instead of `urls`, or what was appended; `training.mixture` weighs them."""
    bad_documents: Literal["skip", "fail"] = identity("skip")
    """What to do with a file that is not UTF-8 or a record that does not parse: skip and count it, or stop."""
    bad_budget: float = identity(0.2, ge=0, le=1)
    """The largest share of the corpus, in bytes, that may be skipped before sharding stops."""

    def named_sources(self, *, appended: bool | None = None) -> dict[str, AddedSource]:
        """The sources by name, those that were appended last; what `urls` names is the source `corpus`.

        Args:
            appended: only those that were appended, or only the others; None for all.
        """
        found: dict[str, AddedSource] = {}
        if self.urls is not None:
            found[UNNAMED] = AddedSource(**{name: getattr(self, name) for name in Source.model_fields})
        found.update(sorted(self.sources.items(), key=lambda item: item[1].appended))
        return {name: source for name, source in found.items() if appended in (None, source.appended)}


class Tokenizer(Section):
    vocab: int = identity(4096, ge=257, le=1 << 20)
    """Size of the vocabulary of the byte-level BPE tokenizer that is trained on the corpus."""
    url: str | None = identity(None)
    """A tokenizer.json to use instead of training one."""
    end_of_text: str = identity("<|endoftext|>", min_length=1)
    """The special token that separates documents; a given tokenizer must have it."""


class CodecWish(Section):
    """What `sharding.codec: auto` is to choose by. Prices are in any one currency."""

    goal: Literal["smallest", "cheapest", "fastest"] = free("smallest")
    """The fewest bytes; the lowest cost of keeping and reading them; or the shortest time to read and decode them."""
    tokens_per_second: float = free(1e6, gt=0)
    """Tokens that training consumes a second on a node."""
    headroom: float = free(10.0, gt=0)
    """For smallest and cheapest: how many times faster than that one thread has to decode."""
    storage_price: float = free(0.023, ge=0)
    """Of keeping a GB for a month."""
    months: float = free(12.0, ge=0)
    """How long the shards are kept."""
    transfer_price: float = free(0.02, ge=0)
    """Of reading a GB from the storage."""
    reads: float = free(3.0, ge=0)
    """How often all of the data set is read: epochs, runs and copies."""
    core_price: float = free(0.0, ge=0)
    """Of a core for an hour: above 0, cheapest counts the time to write the shards and to decode them at each read."""
    bandwidth: float = free(100.0, gt=0)
    """For fastest: MB a second that one thread gets from the storage."""


class Sharding(Section):
    unit: Size = identity(64 << 20)
    """Corpus bytes that are packed together, by one worker; the last block of each unit is padded."""
    row_group: int = identity(256, ge=1, le=1 << 16)
    """Blocks in a row group, which is what a reader fetches at once."""
    block: int | None = identity(None, ge=8, le=1 << 20)
    """Tokens in a block; the longest sequence of `training` and its stages unless set."""
    packing: Literal["concatenate", "best-fit"] = identity("concatenate")
    """How documents become blocks: end to end, or so that as few as possible are cut, at the price of padding."""
    held_out: float = identity(0.01, ge=0, lt=1)
    """Share of the documents that is kept out of training, for evaluation."""
    codec: str = free(
        "zstd:3",
        pattern=r"^(auto|none|lz4|snappy|zstd:([1-9]|1[0-9]|2[0-2])|gzip:[1-9]|brotli:([0-9]|1[01]))$",
    )
    """Compression of the shards: none, lz4, snappy, zstd:LEVEL (1 to 22), gzip:LEVEL (1 to 9), brotli:LEVEL (0 to 11);
    auto tries several on the corpus and takes what meets `codec_wish`. It never changes what is read."""
    codec_wish: CodecWish = free(CodecWish())
    """What auto is to choose by."""
    workers: int | Literal["auto"] = free("auto")
    """Processes that tokenise; `auto` is one a core."""


class Model(Section):
    preset: PresetName = identity("tiny")
    """The shape to start from; each key below replaces one of its sizes."""
    layers: int | None = identity(None, ge=1, le=10_000)
    dim: int | None = identity(None, ge=8, le=1 << 20)
    heads: int | None = identity(None, ge=1, le=1 << 16)
    kv_heads: int | None = identity(None, ge=1, le=1 << 16)
    hidden: int | None = identity(None, ge=8, le=1 << 22)
    vocab: int | None = identity(None, ge=257, le=1 << 24)
    """Rows of the embedding; the tokenizer's vocabulary unless set."""
    rope_theta: float | None = identity(None, gt=0)
    norm_eps: float | None = identity(None, gt=0)
    max_positions: int | None = identity(None, ge=8, le=1 << 32)
    attention: Literal["document", "causal"] = identity("document")
    """Whether a token attends to its own document alone, with positions counted in it, or to the whole block."""

    def shape(self, vocab: int) -> ModelShape:
        """The sizes that result, for a tokenizer of `vocab` tokens."""
        preset = PRESETS[self.preset]
        names = ("layers", "dim", "heads", "kv_heads", "hidden", "rope_theta", "norm_eps", "max_positions")
        chosen = {name: getattr(self, name) for name in names}
        sizes = {name: getattr(preset, name) if value is None else value for name, value in chosen.items()}
        return ModelShape(vocab=self.vocab or vocab, **sizes)


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
    pp: int | Literal["auto"] = free("auto")
    schedule: ScheduleName | Literal["auto"] = free("auto")
    stages_per_rank: int | Literal["auto"] = free("auto")
    """Model stages on each pipeline rank: 1 with 1F1B, 2 or more with Interleaved1F1B."""


def _layout(value: object) -> object:
    return {} if value == "auto" else value


class Checkpoint(Section):
    every: int = free(100, ge=1, le=MOST_STEPS)
    """Optimizer steps between checkpoints; the last step always has one."""
    keep: int | None = free(None, ge=1, le=MOST_STEPS)
    """How many of the newest to keep; null keeps all."""


class Stage(Section):
    at: int = free(ge=1, le=MOST_STEPS)
    """The optimizer step (from 0) from which on it holds."""
    global_batch: int | None = free(None, ge=1, le=1 << 24)
    sequence: int | None = free(None, ge=8, le=1 << 20)
    mixture: Mixture | None = free(None)
    """Each as in `training`; what is not set stays as before."""


class Skip(Section):
    at: int = free(ge=0, le=MOST_STEPS)
    """The optimizer step before which samples are passed over."""
    batches: int = free(ge=1, le=MOST_STEPS)
    """Global batches that are passed over."""


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
    precision: Literal["fp32", "bf16", "fp64"] = identity("fp32")
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
    """`auto`, or any of dp_replicate, dp_shard, pp, schedule, stages_per_rank."""
    checkpoint: Checkpoint = free(Checkpoint())

    @property
    def longest_sequence(self) -> int:
        """Tokens in a sample of the stage that has the longest."""
        return max(self.sequence, *(stage.sequence or 0 for stage in self.stages), 0)

    @property
    def smallest_batch(self) -> int:
        """Samples in an optimizer step of the stage that has the fewest."""
        return min([self.global_batch, *(stage.global_batch or self.global_batch for stage in self.stages)])

    @property
    def tokens(self) -> int:
        """Tokens in all optimizer steps, padding included."""
        total, batch, sequence = 0, self.global_batch, self.sequence
        ends = [*(stage.at for stage in self.stages), self.steps]
        begun = 0
        for number, end in enumerate(ends):
            total += max(0, min(end, self.steps) - begun) * batch * sequence
            if number < len(self.stages):
                stage = self.stages[number]
                batch, sequence = stage.global_batch or batch, stage.sequence or sequence
                begun = min(stage.at, self.steps)
        return total


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
