"""Events, metrics and samples: append-only streams of JSON lines on stores that cannot append.

A stream is a folder of immutable segments `{generation:06d}-{writer}-{n:06d}.jsonl`. A writer collects lines in memory
and puts out a segment by size, by time, at its end and when told to (before a commit). Each line has `v` (schema
version), `seq`, `time` (RFC 3339, UTC), `generation`, `rank`, `name`, `data` and, for a decision, `reason`.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from shardline.components.common.errors import DamagedData, ShardlineError
from shardline.components.common.storage import Storage

SCHEMA_VERSION = 1
_SEGMENT_LINES = 2000


def now() -> str:
    """The time as RFC 3339 in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def jsonable(value: Any) -> Any:
    """`value` with numbers that JSON cannot hold (NaN, infinities) as strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    return value


class StreamWriter:
    """The one writer of a stream on its node in one generation. Safe to call from several threads.

    Storage that fails while a segment is due by time or size is not an error yet: the lines stay and go out with the
    next one. `flush` and `close` raise.
    """

    def __init__(
        self, storage: Storage, *, generation: int, writer: str, rank: int = 0, flush_seconds: float = 5.0
    ) -> None:
        self._storage = storage
        self._prefix = f"{generation:06d}-{writer}-"
        self._generation = generation
        self._rank = rank
        self._lines: list[str] = []
        self._sequence = 0
        self._segment = self._first_free_segment()
        self._lock = threading.Lock()  # of the lines; never held while storage works, so that `append` doesn't wait
        self._putting = threading.Lock()
        self._wake = threading.Event()
        self._ended = threading.Event()
        self._flusher = threading.Thread(
            target=self._flush_by_time, args=(flush_seconds,), name=f"flush-{writer}", daemon=True
        )
        self._flusher.start()

    def _first_free_segment(self) -> int:
        # The same writer may have been here before, in this generation: a step that is run again.
        taken = [name for name in self._storage.names() if name.startswith(self._prefix)]
        return max((int(name[len(self._prefix) :].partition(".")[0]) + 1 for name in taken), default=0)

    def append(self, name: str, data: Mapping[str, Any], *, reason: str | None = None) -> None:
        with self._lock:
            line: dict[str, Any] = {
                "v": SCHEMA_VERSION,
                "seq": self._sequence,
                "time": now(),
                "generation": self._generation,
                "rank": self._rank,
                "name": name,
                "data": jsonable(data),
            }
            if reason is not None:
                line["reason"] = reason
            self._lines.append(json.dumps(line, ensure_ascii=False))
            self._sequence += 1
            if len(self._lines) >= _SEGMENT_LINES:
                self._wake.set()

    def flush(self) -> None:
        """Put out what is in memory.

        Raises:
            ShardlineError: storage failed; the lines stay in memory.
        """
        with self._putting:
            with self._lock:
                lines, self._lines = self._lines, []
            if not lines:
                return
            segment = "".join(f"{line}\n" for line in lines).encode()
            try:
                while not self._storage.create(f"{self._prefix}{self._segment:06d}.jsonl", segment):
                    self._segment += 1
            except BaseException:
                with self._lock:
                    self._lines = lines + self._lines
                raise
            self._segment += 1

    def close(self) -> None:
        self._ended.set()
        self._wake.set()
        self._flusher.join()
        self.flush()

    def __enter__(self) -> StreamWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _flush_by_time(self, seconds: float) -> None:
        while not self._ended.is_set():
            self._wake.wait(seconds)
            self._wake.clear()
            with contextlib.suppress(ShardlineError):
                self.flush()


class StreamReader:
    """Reads a stream, also while it is being written: each call to `new` gives the records that came since.

    Args:
        newest: of what is there at the first call, read so many segments of each generation's writers alone.
    """

    def __init__(self, storage: Storage, *, newest: int | None = None) -> None:
        self._storage = storage
        self._seen: set[str] = set()
        self._newest = newest

    def new(self) -> list[dict[str, Any]]:
        records: list[dict[str, Any]] = []
        names = [name for name in self._storage.names() if name.endswith(".jsonl")]
        if self._newest is not None:
            self._seen.update(_older(names, newest=self._newest))
            self._newest = None
        for name in names:
            if name not in self._seen:
                records.extend(self._segment(name))
                self._seen.add(name)
        records.sort(key=lambda record: record["time"])
        return records

    def _segment(self, name: str) -> list[dict[str, Any]]:
        try:
            records = [json.loads(line) for line in self._storage.read(name).splitlines()]
            if all(isinstance(record, dict) and "time" in record for record in records):
                return records
        except ValueError:
            pass
        where = self._storage.url_of(name)
        raise DamagedData("is not what was written", where=where, hint="bring it back, or delete it and lose its lines")


def _older(names: Iterable[str], *, newest: int) -> list[str]:
    """The segments before the `newest` ones of each writer in each generation."""
    of: dict[str, list[str]] = {}
    for name in sorted(names):
        of.setdefault(name.rpartition("-")[0], []).append(name)
    return [name for segments in of.values() for name in segments[:-newest]]


def read_all(storage: Storage) -> list[dict[str, Any]]:
    """Every record of a stream, by time."""
    return StreamReader(storage).new()


def by_step(records: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """One record for each optimizer step, in order; where a step was done again the highest generation wins."""
    best: dict[int, dict[str, Any]] = {}
    for record in records:
        step = int(record["data"]["step"])
        if step not in best or record["generation"] >= best[step]["generation"]:
            best[step] = record
    for step in sorted(best):
        yield best[step]
