"""The run config's keys for data: corpus, tokenizer, sharding, and the stages of training that change what is read.

Part of `schema`; docstrings below the keys are the JSON schema's descriptions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from shardline.components.common.config.fields import Section, Size, Urls, free, identity

SourceName = Annotated[str, Field(pattern=r"^[a-z0-9]([-_a-z0-9]{0,48}[a-z0-9])?$")]
#: The name of the source that `corpus.urls` is.
UNNAMED = "corpus"
Mixture = dict[str, Annotated[float, Field(gt=0, le=1e9)]]


#: Folders of checkpoints have twelve digits; more than this is a slip of the hand.
MOST_STEPS = 1_000_000_000


def stream_name(sources: str) -> str:
    """The name of the stream that is `sources`, joined by "+" in any order."""
    return "+".join(sorted(sources.split("+")))


class Reading(Section):
    format: Literal["auto", "text", "jsonl", "parquet"] = identity("auto")
    """How files are read; `auto` goes by the ending (.jsonl, .ndjson, .parquet; anything else is text)."""
    text_field: str = identity("text", min_length=1)
    """The field (JSONL) or column (Parquet) that holds a document's text, or the response to a prompt."""
    prompt_field: str | None = identity(None, min_length=1)
    """The field or column of a prompt, which the model reads and is not trained to write."""
    weight_field: str | None = identity(None, min_length=1)
    """The field or column of a document's weight in the training loss, a number from 0 to 1,000,000; else it is 1."""


class Source(Reading):
    urls: Urls = identity()
    """Files, folders or globs, local or at any fsspec URL; `stdlib:` is the standard library of this Python."""


class AddedSource(Source):
    appended: bool = identity(False)
    """Whether it was added to a data set that existed: all of it is trained on, and what was there stays as it is."""


class Corpus(Reading):
    urls: Urls | None = identity(None)
    """Files, folders or globs, local or at any fsspec URL; `stdlib:` is the standard library of this Python."""
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
    write_speed: float = free(10.0, ge=0)
    """For smallest and cheapest: MB of tokens a second that one thread has to write, at least."""
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


@dataclass(frozen=True)
class WholeStage:
    """A stage of which every value is known; `mixture` is None where none was ever set."""

    at: int
    global_batch: int
    sequence: int
    mixture: Mixture | None
