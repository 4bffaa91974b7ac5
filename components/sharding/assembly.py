"""The manifest of a data set: from what the passes left of its units, and what it is appended to. By `making`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import numpy as np

from shardline.components.common.errors import UserError
from shardline.components.common.storage import Storage
from shardline.components.sharding import manifest as names
from shardline.components.sharding.dataset import Dataset, SplitName
from shardline.components.sharding.job import Arrays, Job, Left
from shardline.components.sharding.manifest import FileFacts, Manifest, Skips, SplitFacts, read_manifest, version_for
from shardline.components.sharding.shardfile import GROUP, Groups, Shard, hash_of
from shardline.components.sharding.work import SPLITS

_TOTALS = ("documents", "tokens", "bytes", "text_bytes")


def write_manifest(
    job: Job, records: Iterable[tuple[dict[str, Any], Arrays]], *, skipped: Left, base: Dataset | None
) -> tuple[Manifest, bool]:
    """Put the index, the list of files and, last, the manifest there; that one, and whether it was made here."""
    near = Left()
    made: dict[str, list[dict[str, Any]]] = {split: [] for split in SPLITS}
    groups: dict[str, list[Groups]] = {split: [] for split in SPLITS}
    for about, arrays in records:
        near.merge(Left(**about["near"]))
        for split in SPLITS:
            if about[split]["shard"]:
                made[split].append(about[split])
                groups[split].append(arrays[split])
    if not made["train"]:
        raise UserError(
            f"nothing is left to train on: all {near.documents} training documents are like held-out ones",
            where="corpus",
            hint="give more text, or set sharding.held_out to 0",
        )
    before = base.manifest if base else None
    index = _index([*_groups_of(base, "train"), *groups["train"], *_groups_of(base, "held_out"), *groups["held_out"]])
    files = [*(base.all_files() if base else []), *_files(job)]
    vocabulary, storage = job.tokenizer, job.storage
    weight_fields = _weight_fields(job, before)
    manifest = Manifest(
        version=version_for(bool(weight_fields)),
        key=job.key,
        base=before.key if before else None,
        sources=(*(before.sources if before else ()), *(source.name for source in job.sources)),
        fingerprint=_fingerprint(job, made, before),
        sequence=job.sequence,
        dtype=vocabulary.dtype.name,
        vocab=vocabulary.vocab,
        end_of_text=job.end_of_text,
        end_of_text_id=vocabulary.end_of_text,
        row_group=job.row_group,
        train=_facts(made["train"], before.train if before else SplitFacts()),
        held_out=_facts(made["held_out"], before.held_out if before else SplitFacts()),
        skipped=_skips(skipped, before.skipped if before else None),
        near_duplicates=_skips(near, before.near_duplicates if before else None),
        tokenizer=_facts_of(storage, job.path(names.TOKENIZER), vocabulary.vocab),
        prints=_facts_of(storage, job.path(names.PRINTS), len(job.held_out_prints)),
        index=_put(storage, job.path(names.INDEX), index.tobytes(), len(index)),
        files=_put(storage, job.path(names.FILES), json.dumps(files, indent=0).encode(), sum(map(len, files))),
        weight_fields=weight_fields,
    )
    is_first = storage.create(job.path(names.MANIFEST), manifest.to_json())
    return read_manifest(storage, job.key), is_first


def _weight_fields(job: Job, before: Manifest | None) -> dict[str, str]:
    mine = {source.name: source.fields.weight for source in job.sources if source.fields.weight is not None}
    return {**(before.weight_fields if before else {}), **mine}


def _groups_of(base: Dataset | None, split: SplitName) -> list[Groups]:
    return [] if base is None else base.split(split).groups_by_shard()


def _put(storage: Storage, path: str, data: bytes, count: int) -> FileFacts:
    storage.write(path, data)
    return FileFacts(hash=hash_of(data).hex(), size=len(data), count=count)


def _facts_of(storage: Storage, path: str, count: int) -> FileFacts:
    data = storage.read(path)
    return FileFacts(hash=hash_of(data).hex(), size=len(data), count=count)


def _facts(made: list[dict[str, Any]], before: SplitFacts) -> SplitFacts:
    shards = tuple(Shard(**each["shard"]) for each in made)
    totals = {name: getattr(before, name) + sum(each[name] for each in made) for name in _TOTALS}
    blocks = before.blocks + sum(shard.blocks for shard in shards)
    return SplitFacts(blocks=blocks, shards=before.shards + shards, **totals)


def _skips(left: Left, before: Skips | None) -> Skips:
    if before is None:
        return left.facts()
    total = Left(before.documents, before.bytes, before.reasons, list(before.first))
    total.merge(left)
    return total.facts()


def _index(parts: list[Groups]) -> Groups:
    """All row groups, training's first; `shard` counts through the shards of both splits."""
    renumbered = []
    for number, part in enumerate(parts):
        part = part.copy()
        part["shard"] = number
        renumbered.append(part)
    return np.concatenate([np.zeros(0, GROUP), *renumbered])


def _fingerprint(job: Job, made: dict[str, list[dict[str, Any]]], before: Manifest | None) -> str:
    geometry = {"sequence": job.sequence, "row_group": job.row_group, "vocab": job.tokenizer.vocab}
    contents = {split: [(each["shard"]["blocks"], each["content"]) for each in made[split]] for split in SPLITS}
    parts = [before.fingerprint if before else None, geometry, contents]
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()


def _files(job: Job) -> list[list[dict[str, Any]]]:
    return [[asdict(file) for file in source.files] for source in job.sources]
