"""What a data set states about itself: `{root}/datasets/{key}/manifest.json`, written last.

Read by everything that uses the data set. It stays small: the row groups are in `index.bin`, the corpus files in
`files.json` and the fingerprints of held-out documents in `held_out.bin` beside it, whose hashes it holds; it holds its
own hash, too. A data set without a manifest is none.

Errors: `DamagedData` for a manifest that is not what was written, or of a version that this release cannot read.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from shardline.components.common.errors import DamagedData, UserError
from shardline.components.common.storage import Storage
from shardline.components.sharding.shardfile import Shard, hash_of

#: Of a data set without weights, and of one with them, in which shards have a column more.
VERSION, WEIGHTED = 3, 4
SHARDS = "shards"
MANIFEST = "manifest.json"
INDEX = "index.bin"
FILES = "files.json"
TOKENIZER = "tokenizer.json"
PRINTS = "held_out.bin"
REPAIR = "delete {} and run `shardline shard` with the same config again"


class OtherVersion(DamagedData):
    """The manifest is none that this release can read, though nothing is wrong with it."""


def version_for(weighted: bool) -> int:
    """The version of the manifest, and so of the recipe, of a data set with weights or without."""
    return WEIGHTED if weighted else VERSION


def folder(key: str) -> str:
    """Where, under the storage root, the data set with that recipe key lies."""
    return f"datasets/{key}"


def shard_path(hash_: str) -> str:
    """Where, under the storage root, the shard with that hash lies."""
    return f"{SHARDS}/{hash_}.parquet"


@dataclass(frozen=True, kw_only=True)
class SplitFacts:
    """A split: totals, and its shards in order.

    `tokens` counts targets to train on, `bytes` the UTF-8 text that they stand for, `text_bytes` that of all documents:
    more than `bytes` where there are prompts.
    """

    documents: int = 0
    tokens: int = 0
    bytes: int = 0
    text_bytes: int = 0
    blocks: int = 0
    shards: tuple[Shard, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Skips:
    """What of the corpus was not used: documents, their bytes, how many for which reason, the first by name."""

    documents: int = 0
    bytes: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    first: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FileFacts:
    """A file beside the manifest. `count` is the number of entries in it."""

    hash: str
    size: int
    count: int


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The data set.

    Attributes:
        key: the recipe key; names the folder.
        base: the key of the data set that the last source was appended to; None where none was.
        sources: the names of the corpus sources, by their numbers.
        fingerprint: of tokens, lengths, document boundaries and row-group geometry, in order.
        sequence: tokens in a sample; a block has one more.
        dtype: of the tokens, uint16 or uint32. `vocab`: the largest token id and one.
        end_of_text: the token that separates documents; `end_of_text_id`: its id.
        row_group: blocks in each row group but the last of a shard.
        near_duplicates: documents left out of training, as they are too much like held-out ones; as `Skips`.
        weight_fields: of the sources whose documents have weights, by name, the field that holds them.
    """

    version: int = VERSION
    key: str
    base: str | None
    sources: tuple[str, ...]
    fingerprint: str
    sequence: int
    dtype: str
    vocab: int
    end_of_text: str
    end_of_text_id: int
    row_group: int
    train: SplitFacts
    held_out: SplitFacts
    skipped: Skips
    near_duplicates: Skips
    tokenizer: FileFacts
    prints: FileFacts
    index: FileFacts
    files: FileFacts
    weight_fields: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> bytes:
        body = asdict(self)
        if not self.weight_fields:
            del body["weight_fields"]  # what it was before there were any
        return json.dumps({**body, "hash": seal(body)}, indent=1).encode()

    @staticmethod
    def from_json(data: bytes, *, where: str) -> Manifest:
        """Raises DamagedData."""
        repair = REPAIR.format("it")
        try:
            body = json.loads(data)
            version = body["version"]
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedData("the manifest is damaged: it does not parse", where=where, hint=repair) from error
        if version not in (VERSION, WEIGHTED):
            raise OtherVersion(
                f"the manifest is of version {version}; this release reads versions {VERSION} and {WEIGHTED}",
                where=where,
                hint="use the release of shardline that wrote it, or a newer one",
            )
        if body.pop("hash", None) != seal(body):
            raise DamagedData("the manifest is damaged: its hash does not match", where=where, hint=repair)
        for name in ("train", "held_out"):
            body[name]["shards"] = tuple(Shard(**shard) for shard in body[name]["shards"])
            body[name] = SplitFacts(**body[name])
        for name in ("skipped", "near_duplicates"):
            body[name] = Skips(**{**body[name], "first": tuple(body[name]["first"])})
        for name in ("tokenizer", "prints", "index", "files"):
            body[name] = FileFacts(**body[name])
        return Manifest(**{**body, "sources": tuple(body["sources"])})

    @property
    def beside(self) -> dict[str, FileFacts]:
        """The files beside the manifest, by name."""
        return {TOKENIZER: self.tokenizer, PRINTS: self.prints, INDEX: self.index, FILES: self.files}


def seal(body: dict[str, Any]) -> str:
    """The hash that a JSON file of a data set holds of itself: of the rest of it."""
    return hash_of(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hex()


def codecs_of(manifest: Manifest) -> dict[str, tuple[int, int]]:
    """By codec, how many shards there are of it and their bytes."""
    totals: dict[str, tuple[int, int]] = {}
    for shard in (*manifest.train.shards, *manifest.held_out.shards):
        count, size = totals.get(shard.codec, (0, 0))
        totals[shard.codec] = (count + 1, size + shard.size)
    return dict(sorted(totals.items()))


def read_manifest(storage: Storage, key: str) -> Manifest:
    """The manifest of the data set with that key, under the storage root.

    Raises:
        UserError: there is no such data set.
        DamagedData: as `Manifest.from_json`.
    """
    path = f"{folder(key)}/{MANIFEST}"
    try:
        data = storage.read(path)
    except FileNotFoundError:
        raise UserError(
            "there is no data set", where=storage.url_of(path), hint="run `shardline shard` with this config first"
        ) from None
    return Manifest.from_json(data, where=storage.url_of(path))
