"""The making of a data set: a run config in, a data set under the storage root out. Called by `step`.

Idempotent: a data set that is there is checked and kept, one that was begun is gone on with, one of which something is
missing is made again. Two processes that make the same one at once do no harm: all they write is the same, and each
file appears whole.

Errors: `UserError` for a corpus or tokenizer that will not do, `DamagedData` for a manifest of another version,
`PeerLost` when a worker was killed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from shardline.components.common.config import RunConfig
from shardline.components.common.errors import DamagedData, UserError, from_os_error
from shardline.components.common.storage import Storage, split_url
from shardline.components.sharding import heldout
from shardline.components.sharding import manifest as names
from shardline.components.sharding import tokenizer as tokenizers
from shardline.components.sharding.corpus import CorpusFile, list_files
from shardline.components.sharding.enough import check_budget, check_counts
from shardline.components.sharding.job import (
    HELD_OUT_PRINTS,
    TRAINED_TOKENIZER,
    Arrays,
    Job,
    Left,
    load_record,
    save_record,
)
from shardline.components.sharding.manifest import FileFacts, Manifest, OtherVersion, SplitFacts
from shardline.components.sharding.pool import Pool
from shardline.components.sharding.shardfile import GROUP, Groups, Shard, hash_of
from shardline.components.sharding.work import SPLITS, pack, sample_texts, scan

#: Of a larger corpus the tokenizer is trained on a sample, drawn by content, of this many bytes a token, within limits.
SAMPLE_BYTES_A_TOKEN = 2048
SAMPLE_BYTES = (4 << 20, 256 << 20)

Phase = Literal["scan", "tokenizer", "pack"]


@dataclass(frozen=True)
class Progress:
    """`done` of `total` units of a phase; `bytes` of the corpus that they amount to."""

    phase: Phase
    done: int
    total: int
    bytes: int


OnProgress = Callable[[Progress], None]


def dataset_key(config: RunConfig) -> str:
    """The recipe key of the data set that `config` asks for: it names the folder.

    Raises:
        UserError: the corpus is empty or not there, or the tokenizer is not.
    """
    return _key(config, list_files(config.corpus), _given_tokenizer(config))


def shard(config: RunConfig, *, on_progress: OnProgress | None = None) -> Manifest:
    """Make the data set, or find it made."""
    files = list_files(config.corpus)
    given = _given_tokenizer(config)
    key = _key(config, files, given)
    storage = Storage(config.storage)
    found = _finished(storage, key)
    if found is None:
        job = _job(config, key, files)
        try:
            found = _Making(config, job, given, on_progress or (lambda progress: None)).run()
        except FileNotFoundError:
            # Another process has made the same data set meanwhile and cleaned up, or it is an error indeed.
            found = _finished(storage, key)
            if found is None:
                raise
    storage.delete_tree(f"{names.folder(key)}/work")
    return found


def _given_tokenizer(config: RunConfig) -> bytes | None:
    url = config.tokenizer.url
    if url is None:
        return None
    fs, path = split_url(url)
    try:
        return bytes(fs.cat_file(path))
    except OSError as error:
        raise from_os_error(error, url) from error


def _key(config: RunConfig, files: list[CorpusFile], given: bytes | None) -> str:
    tokenizer = {"vocab": config.tokenizer.vocab} if given is None else {"hash": hash_of(given).hex()}
    recipe = {
        "version": names.VERSION,
        "files": [asdict(file) for file in files],
        "corpus": config.corpus.model_dump(mode="json", exclude={"urls", "format"}),
        "tokenizer": {**tokenizer, "end_of_text": config.tokenizer.end_of_text},
        "sequence": config.training.sequence,
        "unit": config.sharding.unit,
        "row_group": config.sharding.row_group,
        "held_out": config.sharding.held_out,
    }
    return hash_of(json.dumps(recipe, sort_keys=True).encode()).hex()


def _job(config: RunConfig, key: str, files: list[CorpusFile]) -> Job:
    total = sum(file.size for file in files)
    sample = min(max(config.tokenizer.vocab * SAMPLE_BYTES_A_TOKEN, SAMPLE_BYTES[0]), SAMPLE_BYTES[1])
    return Job(
        root=config.storage,
        key=key,
        files=tuple(files),
        unit=config.sharding.unit,
        text_field=config.corpus.text_field,
        stop_at_bad=config.corpus.bad_documents == "fail",
        held_out=config.sharding.held_out,
        sample_share=0.0 if config.tokenizer.url else min(1.0, sample / total),
        end_of_text=config.tokenizer.end_of_text,
        sequence=config.training.sequence,
        row_group=config.sharding.row_group,
        codec=config.sharding.codec,
    )


def _finished(storage: Storage, key: str) -> Manifest | None:
    """The manifest, if the data set is whole as far as sizes tell; a manifest of what is not is taken away."""
    folder = names.folder(key)
    path = f"{folder}/{names.MANIFEST}"
    try:
        data = storage.read(path)
    except FileNotFoundError:
        return None
    try:
        manifest = Manifest.from_json(data, where=storage.url_of(path))
    except OtherVersion:
        raise
    except DamagedData:
        storage.delete(path)
        return None
    parts = {
        f"{folder}/{names.INDEX}": manifest.index.size,
        f"{folder}/{names.FILES}": manifest.files.size,
        f"{folder}/{names.TOKENIZER}": manifest.tokenizer.size,
    }
    shards = (*manifest.train.shards, *manifest.held_out.shards)
    parts.update((names.shard_path(shard.hash), shard.size) for shard in shards)
    wrong = [name for name, size in parts.items() if _size(storage, name) != size]
    if not wrong:
        return manifest
    for name in (path, *wrong):
        storage.delete(name)
    return None


def _size(storage: Storage, path: str) -> int | None:
    try:
        return storage.size(path)
    except FileNotFoundError:
        return None


class _Making:
    """One attempt to make a data set."""

    def __init__(self, config: RunConfig, job: Job, given: bytes | None, on_progress: OnProgress) -> None:
        self._config = config
        self._job = job
        self._storage = job.storage
        self._given = given
        self._on_progress = on_progress

    def run(self) -> Manifest:
        job, config = self._job, self._config
        asked = config.sharding.workers
        workers = min((os.cpu_count() or 1) if asked == "auto" else asked, len(job.units))
        with Pool(job, workers=workers) as pool:
            self._pass(pool, "scan", scan)
            left = self._check_scan()
            self._tokenizer()
            self._pass(pool, "pack", pack)
        return self._write(left)

    def _pass(self, pool: Pool[Job], phase: Phase, task: Callable[[Job, int], None]) -> None:
        job = self._job
        there = set(self._storage.names(job.path("work")))
        units = range(len(job.units))
        wanted = [unit for unit in units if os.path.basename(job.record(phase, unit)) not in there]
        done = len(units) - len(wanted)
        size = sum(_length(job, unit) for unit in units) - sum(_length(job, unit) for unit in wanted)
        self._on_progress(Progress(phase, done, len(units), size))
        for unit, _ in pool.map(task, wanted):
            done, size = done + 1, size + _length(job, unit)
            self._on_progress(Progress(phase, done, len(units), size))

    def _records(self, phase: Phase) -> Iterator[tuple[dict[str, Any], Arrays]]:
        for unit in range(len(self._job.units)):
            yield load_record(self._storage, self._job.record(phase, unit))

    def _check_scan(self) -> Left:
        """What was skipped, if the corpus will do; the fingerprints of all held-out documents go to the work folder."""
        left, counts, prints = Left(), dict.fromkeys(SPLITS, 0), []
        for about, arrays in self._records("scan"):
            left.merge(Left(**about["left"]))
            prints.append(arrays["prints"])
            for split in SPLITS:
                counts[split] += about["documents"][split]
        check_budget(self._config, left, self._job.units.total)
        check_counts(self._config, counts, left)
        save_record(self._storage, self._job.path("work", HELD_OUT_PRINTS), {}, {"prints": heldout.union(prints)})
        return left

    def _tokenizer(self) -> None:
        path = self._job.path(names.TOKENIZER)
        settings = self._config.tokenizer
        if self._given is not None:
            tokenizers.Tokenizer(self._given, end_of_text=settings.end_of_text, where=str(settings.url))
            self._storage.write(path, self._given)
        else:
            self._storage.write(path, self._trained())

    def _trained(self) -> bytes:
        """The tokenizer that is trained on the corpus; from its record, whose checksum tells that it is whole."""
        record = self._job.path("work", TRAINED_TOKENIZER)
        with contextlib.suppress(FileNotFoundError):
            return load_record(self._storage, record)[1]["tokenizer"].tobytes()
        settings = self._config.tokenizer
        self._on_progress(Progress("tokenizer", 0, 1, 0))
        texts = (text for _, arrays in self._records("scan") for text in sample_texts(arrays))
        data = tokenizers.train(texts, vocab=settings.vocab, end_of_text=settings.end_of_text)
        save_record(self._storage, record, {}, {"tokenizer": np.frombuffer(data, np.uint8)})
        self._on_progress(Progress("tokenizer", 1, 1, self._job.units.total))
        return data

    def _write(self, left: Left) -> Manifest:
        near = Left()
        made: dict[str, list[dict[str, Any]]] = {split: [] for split in SPLITS}
        groups: dict[str, list[Groups]] = {split: [] for split in SPLITS}
        for about, arrays in self._records("pack"):
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
        index = _index([group for split in SPLITS for group in groups[split]])
        job, vocabulary = self._job, self._job.tokenizer
        manifest = Manifest(
            key=job.key,
            fingerprint=_fingerprint(job, made),
            sequence=job.sequence,
            dtype=vocabulary.dtype.name,
            vocab=vocabulary.vocab,
            end_of_text=job.end_of_text,
            end_of_text_id=vocabulary.end_of_text,
            row_group=job.row_group,
            train=_facts(made["train"]),
            held_out=_facts(made["held_out"]),
            skipped=left.facts(),
            near_duplicates=near.facts(),
            tokenizer=self._facts_of(names.TOKENIZER, vocabulary.vocab),
            index=self._put(names.INDEX, index.tobytes(), len(index)),
            files=self._put(names.FILES, _files_json(job.files), len(job.files)),
        )
        self._storage.create(job.path(names.MANIFEST), manifest.to_json())
        return names.read_manifest(self._storage, job.key)

    def _put(self, name: str, data: bytes, count: int) -> FileFacts:
        self._storage.write(self._job.path(name), data)
        return FileFacts(hash=hash_of(data).hex(), size=len(data), count=count)

    def _facts_of(self, name: str, count: int) -> FileFacts:
        data = self._storage.read(self._job.path(name))
        return FileFacts(hash=hash_of(data).hex(), size=len(data), count=count)


def _length(job: Job, unit: int) -> int:
    start, end = job.units.span(unit)
    return end - start


def _facts(made: list[dict[str, Any]]) -> SplitFacts:
    shards = tuple(Shard(**each["shard"]) for each in made)
    totals = {name: sum(each[name] for each in made) for name in ("documents", "tokens", "bytes")}
    return SplitFacts(blocks=sum(shard.blocks for shard in shards), shards=shards, **totals)


def _index(parts: list[Groups]) -> Groups:
    """All row groups, training's first; `shard` counts through the shards of both splits."""
    for number, part in enumerate(parts):
        part["shard"] = number
    return np.concatenate([np.zeros(0, GROUP), *parts])


def _fingerprint(job: Job, made: dict[str, list[dict[str, Any]]]) -> str:
    content = hashlib.blake2b(digest_size=16)
    geometry = {"sequence": job.sequence, "row_group": job.row_group, "vocab": job.tokenizer.vocab}
    contents = {split: [(each["shard"]["blocks"], each["content"]) for each in made[split]] for split in SPLITS}
    content.update(json.dumps([geometry, contents], sort_keys=True).encode())
    return content.hexdigest()


def _files_json(files: tuple[CorpusFile, ...]) -> bytes:
    return json.dumps([asdict(file) for file in files], indent=0).encode()
