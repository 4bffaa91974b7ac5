"""One attempt to make one data set: the passes over its units, and the manifest at the end. Called by `making`.

All that it leaves is a function of the job, so attempts may follow each other, or run at the same time.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from shardline.components.common.config import RunConfig
from shardline.components.common.errors import PeerLost, UserError
from shardline.components.sharding import codec as codecs
from shardline.components.sharding import codec_sample, heldout
from shardline.components.sharding import manifest as names
from shardline.components.sharding import tokenizer as tokenizers
from shardline.components.sharding.assembly import write_manifest
from shardline.components.sharding.dataset import Dataset
from shardline.components.sharding.enough import check_budget, check_counts
from shardline.components.sharding.job import TRAINED_TOKENIZER, Arrays, Job, Left, load_record, save_record
from shardline.components.sharding.manifest import Manifest
from shardline.components.sharding.pool import Pool
from shardline.components.sharding.work import SPLITS, pack, sample_texts, scan

Phase = Literal["scan", "tokenizer", "codec", "pack"]
#: How long another part may show no progress before its units are done here, and how often that is looked at.
_PATIENCE_SECONDS = 60.0
_POLL_SECONDS = 1.0


@dataclass(frozen=True)
class Progress:
    """`done` of `total` units of a phase; `bytes` of the corpus that they amount to."""

    phase: Phase
    done: int
    total: int
    bytes: int


OnProgress = Callable[[Progress], None]
OnCodec = Callable[[codecs.Decision], None]


def _ignore(_: object) -> None:
    pass


class Overtaken(PeerLost):
    """Another process has made the same data set meanwhile."""


class Attempt:
    """Making of the data set that `job` describes, on top of `base` if that is not None."""

    def __init__(
        self,
        config: RunConfig,
        job: Job,
        *,
        given: bytes | None,
        base: Dataset | None,
        on_progress: OnProgress | None = None,
        on_codec: OnCodec | None = None,
    ) -> None:
        self._config = config
        self._job = job
        self._storage = job.storage
        self._given = given
        self._base = base
        self._on_progress = on_progress or _ignore
        self._on_codec = on_codec or _ignore

    def run(self) -> Left:
        """Do all that is not done; returns what had to be skipped.

        Raises:
            Overtaken: another process has done it all.
        """
        units = range(len(self._job.units))
        with self._pool() as pool:
            self._pass(pool, "scan", scan, units)
            left = self._prepare()
            self._pass(pool, "pack", pack, units)
        return left

    def run_part(self, part: int, parts: int) -> None:
        """Do every `parts`-th unit, from `part` on.

        What is drawn up from all units needs them all looked at; where another part makes no progress, its units are
        looked at here.
        """
        mine = range(part, len(self._job.units), parts)
        with self._pool() as pool:
            self._pass(pool, "scan", scan, mine)
            patience = _PATIENCE_SECONDS
            while others := self._missing_later("scan", patience):
                # Not all waiting parts begin with the same one.
                unit = others[part * len(others) // parts]
                self._pass(pool, "scan", scan, [unit])
                # Where no other part has done anything meanwhile there is none to wait for again.
                alone = set(self._missing("scan")) == set(others) - {unit}
                patience = 0.0 if alone else _PATIENCE_SECONDS
            self._prepare()
            self._pass(pool, "pack", pack, mine)

    def finish(self) -> Left:
        """What `run` returns, where parts have done the work.

        Raises:
            UserError: some units are not done.
        """
        missing = self._missing("pack")
        if missing:
            raise UserError(
                f"{len(missing)} of {len(self._job.units)} units are not done yet, the first is number {missing[0]}",
                where=self._storage.url_of(self._job.path("work")),
                hint="run every part to its end, then merge; part i of n does units i, i + n, i + 2n, ...",
            )
        return self._prepare()

    def _pool(self) -> Pool[Job]:
        asked = self._config.sharding.workers
        return Pool(self._job, workers=min((os.cpu_count() or 1) if asked == "auto" else asked, len(self._job.units)))

    def _pass(self, pool: Pool[Job], phase: Phase, task: Callable[[Job, int], None], units: Sequence[int]) -> None:
        missing = set(self._missing(phase))
        wanted = [unit for unit in units if unit in missing]
        lengths = self._job.units.length
        done = len(units) - len(wanted)
        size = sum(map(lengths, units)) - sum(map(lengths, wanted))
        self._on_progress(Progress(phase, done, len(units), size))
        for unit, _ in pool.map(task, wanted):
            if self._storage.exists(self._job.path(names.MANIFEST)):
                raise Overtaken("another process has made it meanwhile", where=self._storage.url_of(self._job.path()))
            done, size = done + 1, size + lengths(unit)
            self._on_progress(Progress(phase, done, len(units), size))

    def _missing(self, phase: Phase) -> list[int]:
        there = set(self._storage.names(self._job.path("work")))
        units = range(len(self._job.units))
        return [unit for unit in units if os.path.basename(self._job.record(phase, unit)) not in there]

    def _missing_later(self, phase: Phase, patience: float) -> list[int]:
        """What is missing still when there was no progress for `patience` seconds; nothing when nothing is."""
        missing, since = self._missing(phase), time.monotonic()
        while missing and time.monotonic() - since < patience:
            time.sleep(_POLL_SECONDS)
            now = self._missing(phase)
            if now != missing:
                missing, since = now, time.monotonic()
        return missing

    def assemble(self, skipped: Left) -> tuple[Manifest, bool]:
        """The manifest, of what is done of every unit, and whether it is this one that counts."""
        return write_manifest(self._job, self._records("pack"), skipped=skipped, base=self._base)

    def _records(self, phase: Phase) -> Iterator[tuple[dict[str, Any], Arrays]]:
        """What a pass has left of each unit."""
        for unit in range(len(self._job.units)):
            yield load_record(self._storage, self._job.record(phase, unit))

    def _prepare(self) -> Left:
        """Between the passes: whether the corpus will do, the held-out fingerprints, the tokenizer."""
        left, counts, prints = Left(), dict.fromkeys(SPLITS, 0), []
        for about, arrays in self._records("scan"):
            left.merge(Left(**about["left"]))
            prints.append(arrays["prints"])
            for split in SPLITS:
                counts[split] += about["documents"][split]
        check_budget(self._config, left, self._job.units.total)
        names_of = [source.name for source in self._job.sources]
        check_counts(counts, left, share=self._job.held_out, sources=names_of)
        if self._base is None:
            self._put(names.PRINTS, heldout.union(prints).astype("<u8").tobytes())
            self._put(names.TOKENIZER, self._tokenizer())
        else:
            self._put(names.PRINTS, self._base.read_beside(names.PRINTS))
            self._put(names.TOKENIZER, self._base.tokenizer_json())
        if self._job.codec == codecs.AUTO:
            self._codec()
        return left

    def _codec(self) -> None:
        """Have it decided, or find it decided, with what the shards are compressed: the workers read it."""
        job = self._job

        def sample() -> codec_sample.Sample:
            texts = codec_sample.draw_texts(job.sources, unit=job.unit)
            return codec_sample.pack_texts(
                texts, tokenizer=job.tokenizer, sequence=job.sequence, row_group=job.row_group
            )

        self._on_progress(Progress("codec", 0, 1, 0))
        if self._base is not None:
            codecs.inherit(self._storage, job.key, base=self._base.manifest.key)
        wish, source = self._config.sharding.codec_wish, job.sources[0].number
        self._on_codec(codecs.decide(self._storage, job.key, wish=wish, sample=sample, source=source))
        self._on_progress(Progress("codec", 1, 1, job.units.total))

    def _put(self, name: str, data: bytes) -> None:
        self._storage.write(self._job.path(name), data)

    def _tokenizer(self) -> bytes:
        if self._given is None:
            return self._trained()
        settings = self._config.tokenizer
        tokenizers.Tokenizer(self._given, end_of_text=settings.end_of_text, where=str(settings.url))
        return self._given

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
