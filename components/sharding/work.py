"""The two passes over a unit, each leaving one small record: `scan` looks at its documents, `pack` makes its shards.

Run by the pool's workers. A unit's record is a pure function of the job, so one that is there already is never made
again, whoever made it, and a killed run goes on where it was.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from shardline.components.sharding import heldout
from shardline.components.sharding.bestfit import BestFit
from shardline.components.sharding.blocks import U64, Blocks, Tokens
from shardline.components.sharding.corpus import SourceFiles
from shardline.components.sharding.job import Arrays, Job, Left, leave_out, save_record
from shardline.components.sharding.manifest import shard_path
from shardline.components.sharding.packing import Packer, Packing, Piece
from shardline.components.sharding.records import Document
from shardline.components.sharding.shardfile import GROUP, Groups
from shardline.components.sharding.shardwriter import ShardWriter
from shardline.components.sharding.tokenizer import Tokenizer

SPLITS = ("train", "held_out")

_BATCH_BYTES = 1 << 20


# pass 1


def scan(job: Job, unit: int) -> None:
    """Count a unit's documents, take the fingerprints of those held out, and the tokenizer's sample of the rest."""
    left = Left()
    counts = dict.fromkeys(SPLITS, 0)
    prints: list[U64] = []
    sample: list[bytes] = []
    for document in job.documents(unit, left):
        data = document.whole.encode()
        split = _split_of(job, data)
        counts[split] += 1
        if split == "held_out":
            prints.append(heldout.fingerprints(document.whole))
        elif job.sample_share and heldout.drawn(data, job.sample_share, purpose="tokenizer"):
            sample.append(data)
    arrays: Arrays = {
        "prints": heldout.union(prints),
        "sample": np.frombuffer(b"".join(sample), np.uint8),
        "sample_sizes": np.array([len(data) for data in sample], np.int64),
    }
    save_record(job.storage, job.record("scan", unit), {"documents": counts, "left": left.to_json()}, arrays)


def sample_texts(arrays: Arrays) -> Iterator[str]:
    """The documents that a scan kept for training the tokenizer."""
    data, start = arrays["sample"].tobytes(), 0
    for size in arrays["sample_sizes"].tolist():
        yield data[start : start + size].decode()
        start += size


def _split_of(job: Job, data: bytes) -> str:
    return SPLITS[heldout.drawn(data, job.held_out, purpose="held out")]


# pass 2


def pack(job: Job, unit: int) -> None:
    """Tokenise a unit's documents and write its shards, one for each split that has any."""
    near, source = Left(), job.source_of(unit)
    about: dict[str, Any] = {}
    arrays: Arrays = {}
    streams = {split: _Stream(job, source) for split in SPLITS}
    try:
        for batch in _batches(job.documents(unit, Left())):
            kept: list[tuple[_Stream, Document]] = []
            for document, data in batch:
                split = _split_of(job, data)
                if split == "train" and heldout.is_near(heldout.fingerprints(document.whole), job.held_out_prints):
                    leave_out(source, document, len(data), "like held-out text", near)
                else:
                    kept.append((streams[split], document))
            for stream, piece in _tokenized(job.tokenizer, kept):
                stream.add(piece)
        for split, stream in streams.items():
            about[split], arrays[split] = stream.finish()
    finally:
        for stream in streams.values():
            stream.close()
    save_record(job.storage, job.record("pack", unit), {**about, "near": near.to_json()}, arrays)


def _batches(documents: Iterator[Document]) -> Iterator[list[tuple[Document, bytes]]]:
    batch: list[tuple[Document, bytes]] = []
    size = 0
    for document in documents:
        data = document.whole.encode()
        batch.append((document, data))
        size += len(data)
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    yield batch


def _tokenized(tokenizer: Tokenizer, kept: list[tuple[_Stream, Document]]) -> Iterator[tuple[_Stream, Piece]]:
    """Prompt and text are tokenised apart: no token is half of the one and half of the other."""
    prompts = iter(_with_sizes(tokenizer, [document.prompt for _, document in kept if document.prompt]))
    texts = _with_sizes(tokenizer, [document.text for _, document in kept])
    for (stream, document), (ids, sizes) in zip(kept, texts, strict=True):
        quiet = 0
        if document.prompt:
            before, sizes_before = next(prompts)
            quiet = len(before)
            ids, sizes = np.concatenate([before, ids]), np.concatenate([sizes_before, sizes])
        place = {"file": document.file, "offset": document.offset}
        yield stream, Piece(ids=ids, sizes=sizes, quiet=quiet, weight=document.weight, **place)


def _with_sizes(tokenizer: Tokenizer, texts: list[str]) -> Iterator[tuple[Tokens, npt.NDArray[np.int32]]]:
    for text, ids in zip(texts, tokenizer.encode(texts), strict=True):
        yield ids, tokenizer.byte_sizes(ids, len(text.encode()))


class _Stream:
    """A unit's documents of one split, on their way into a shard."""

    def __init__(self, job: Job, source: SourceFiles) -> None:
        tokenizer = job.tokenizer
        self._storage = job.storage
        kind: type[Packer] | type[BestFit] = BestFit if job.packing == "best-fit" else Packer
        self._packer: Packing = kind(
            sequence=job.sequence,
            row_group=job.row_group,
            dtype=tokenizer.dtype,
            end_of_text=tokenizer.end_of_text,
            source=source.number,
        )
        self._weighted = source.fields.weight is not None
        self._writer = ShardWriter(
            sequence=job.sequence,
            dtype=tokenizer.dtype,
            codec=job.shard_codec,
            source=source.number,
            weighted=self._weighted,
        )
        self._content = hashlib.blake2b(digest_size=16)

    def add(self, document: Piece) -> None:
        """Append a document."""
        for blocks in self._packer.add(document):
            self._write(blocks)

    def finish(self) -> tuple[dict[str, Any], Groups]:
        """Store the shard under its hash; its facts, and its row groups."""
        for blocks in self._packer.finish():
            self._write(blocks)
        totals = self._packer.totals
        if not totals.documents:
            return {**asdict(totals), "shard": None, "content": None}, np.zeros(0, GROUP)
        shard, groups, file = self._writer.finish()
        with self._storage.writer(shard_path(shard.hash)) as target:
            shutil.copyfileobj(file, target, 1 << 20)
        return {**asdict(totals), "shard": asdict(shard), "content": self._content.hexdigest()}, groups

    def close(self) -> None:
        self._writer.close()

    def _write(self, blocks: Blocks) -> None:
        self._writer.write(blocks)
        counts = (blocks.length, blocks.bytes, blocks.source, blocks.bounds)
        weights = (blocks.weights,) if self._weighted else ()
        for column in (blocks.tokens, *counts, blocks.starts, blocks.quiet, blocks.files, blocks.offsets, *weights):
            self._content.update(np.ascontiguousarray(column).data)
