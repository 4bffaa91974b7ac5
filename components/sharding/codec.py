"""What `sharding.codec: auto` comes to: codecs are measured on a sample, and the decision is recorded and obeyed.

Called by the making of a data set, before the first shard and for each source that is appended; by the workers, which
write what was decided; and by `--explain`. It owns `{root}/datasets/{key}/codec.json`: the decisions in order, each
with its measured table. Once a source's decision is there nothing is measured for it again, by whatever process or
under whatever wish; two that decide at once agree on whose was there first.

Nothing that is read depends on the file: each shard names its own codec. So one that is damaged is replaced by a new
decision. To have it decided anew on purpose, delete it.

Errors: `OtherVersion` for a file that a later release wrote; `DamagedData` for the workers, which do not decide.
"""

from __future__ import annotations

import contextlib
import json
import platform
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np

from shardline.components.common.config.data_schema import CodecWish
from shardline.components.common.errors import DamagedData
from shardline.components.common.storage import Storage
from shardline.components.sharding.codec_choice import CANDIDATES, Trial, choose, score
from shardline.components.sharding.codec_sample import Sample
from shardline.components.sharding.manifest import OtherVersion, folder, seal
from shardline.components.sharding.shardfile import Groups, Shard, checksum_of, decode_group, decode_tokens, read_footer
from shardline.components.sharding.shardwriter import ShardWriter

AUTO = "auto"
CODEC_FILE = "codec.json"

_VERSION = 1
#: A measurement is taken this often and the fastest counts, as what else the machine does only makes it slower. Writing
#: that has taken so many seconds is not repeated.
_TIMES, _SECONDS = 5, 0.1


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The codec of a source's shards.

    Attributes:
        source: the corpus source; 0 is the first.
        wish: the `sharding.codec_wish` that it was chosen by.
        table: what was measured. `scores`: by codec, the number that the wish's goal counts (`codec_choice.score`).
        sample: what it was measured on: documents, bytes of text, tokens, bytes a token, blocks, row groups.
        versions: of what measured.
    """

    source: int
    codec: str
    reason: str
    wish: dict[str, Any]
    table: tuple[Trial, ...]
    scores: dict[str, float]
    sample: dict[str, int]
    versions: dict[str, str]


def decide(storage: Storage, key: str, *, wish: CodecWish, sample: Callable[[], Sample], source: int = 0) -> Decision:
    """The codec for the shards of a source of the data set `key`: as recorded, or chosen now and recorded.

    A source after the first keeps the codec before it unless another one is better by a margin (`codec_choice.BETTER`).

    Args:
        storage: the storage root.
        sample: gives the source's sample; called if nothing is recorded for it.

    Raises:
        OtherVersion: a later release has decided.
    """
    path = _path(key)
    table: tuple[Trial, ...] | None = None
    while True:
        data, decisions = _load(storage, path)
        for decision in decisions:
            if decision.source == source:
                return decision
        before = decisions[-1].codec if decisions else None
        if table is None:
            drawn = sample()
            table = measure(drawn, codecs=dict.fromkeys([*CANDIDATES, *filter(None, [before])]))
        made = decision_on(drawn, table, wish=wish, source=source, before=before)
        # Not there any more, or not as it was: another process has decided meanwhile.
        if storage.swap(path, data, _to_json((*decisions, made))):
            return made


def inherit(storage: Storage, key: str, *, base: str) -> None:
    """Take over what was decided for the data set `base`, to which a source is appended; nothing when that is done."""
    with contextlib.suppress(FileNotFoundError):
        storage.create(_path(key), storage.read(_path(base)))


def decision_on(
    sample: Sample, table: tuple[Trial, ...], *, wish: CodecWish, source: int = 0, before: str | None = None
) -> Decision:
    """The decision that follows from a table; nothing is recorded. `before`: the codec of the source before."""
    choice = choose(table, wish, token_bytes=sample.token_bytes, current=before)
    return Decision(
        source=source,
        codec=choice.codec,
        reason=choice.reason,
        wish=wish.model_dump(mode="json"),
        table=table,
        scores={trial.codec: score(trial, wish) for trial in table},
        sample={
            "documents": sample.documents,
            "bytes": sample.bytes,
            "tokens": sample.raw // sample.token_bytes,
            "token_bytes": sample.token_bytes,
            "blocks": sample.blocks,
            "row_groups": len(sample.groups),
        },
        versions={
            "shardline": version("shardline"),
            "pyarrow": version("pyarrow"),
            "python": platform.python_version(),
            "machine": platform.machine(),
        },
    )


def decided(storage: Storage, key: str, *, source: int = 0) -> Decision:
    """The recorded decision.

    Raises:
        DamagedData: there is none, or it cannot be read.
    """
    where = storage.url_of(_path(key))
    for decision in decisions_of(storage, key):
        if decision.source == source:
            return decision
    raise DamagedData(
        "holds no decision on the shards' codec", where=where, hint="run `shardline shard` again: it decides anew"
    )


def decisions_of(storage: Storage, key: str) -> tuple[Decision, ...]:
    """All recorded decisions, in order; none where there is no file or a damaged one.

    Raises:
        OtherVersion: a later release wrote them.
    """
    return _load(storage, _path(key))[1]


def measure(sample: Sample, *, codecs: Iterable[str] = CANDIDATES) -> tuple[Trial, ...]:
    """Each codec on the sample, through the writer and the reader of shards. Times are of this thread's processor."""
    # The first to touch the sample's memory and the libraries pays for it: it must be none of those compared.
    _read(_write(sample, "none"))
    written = [_write(sample, codec) for codec in codecs]
    # By turns, so that what slows the machine down for a while slows down all of them.
    rounds = [[_read(each) for each in written] for _ in range(_TIMES)]
    return tuple(
        Trial(
            codec=each.codec,
            raw=sample.raw,
            size=each.shard.size,
            write_mb_s=sample.raw / 1e6 / each.seconds,
            decode_mb_s=sample.raw / 1e6 / min(times),
        )
        for each, times in zip(written, zip(*rounds, strict=True), strict=True)
    )


class _Written(NamedTuple):
    """The sample as a shard, and the seconds that writing it took."""

    codec: str
    seconds: float
    shard: Shard
    groups: Groups
    data: bytes
    sequence: int
    dtype: np.dtype[Any]


def _write(sample: Sample, codec: str) -> _Written:
    tokens = sample.groups[0].tokens
    fastest, spent = float("inf"), 0.0
    for _ in range(_TIMES):
        start = time.thread_time()
        writer = ShardWriter(sequence=tokens.shape[1] - 1, dtype=tokens.dtype, codec=codec)
        try:
            for group in sample.groups:
                writer.write(group)
            shard, groups, file = writer.finish()
            seconds = _since(start)
            data = file.read()
        finally:
            writer.close()
        fastest, spent = min(fastest, seconds), spent + seconds
        if spent >= _SECONDS:
            break
    return _Written(codec, fastest, shard, groups, data, tokens.shape[1] - 1, tokens.dtype)


def _read(written: _Written) -> float:
    """Seconds to read all row groups, as `dataset` does it."""
    shard, data = written.shard, written.data
    footer = read_footer(data[shard.footer :])
    parts = [data[int(group["offset"]) : int(group["offset"]) + int(group["length"])] for group in written.groups]
    rows = int(written.groups["rows"].max())
    into = np.empty(rows * (written.sequence + 1) * written.dtype.itemsize, np.uint8).data
    start = time.thread_time()
    for number, (group, part) in enumerate(zip(written.groups, parts, strict=True)):
        checksum_of(part)
        tokens = decode_tokens(
            group, part, sequence=written.sequence, dtype=written.dtype, codec=shard.codec, into=into
        )
        offset = int(group["offset"])
        decode_group(footer, number, size=shard.size, offset=offset, data=part, tokens=tokens, first=0)
    return _since(start)


def _since(start: float) -> float:
    """Seconds of this thread's processor; never 0, though the clock may not have moved on."""
    return max(time.thread_time() - start, 1e-6)


def _path(key: str) -> str:
    return f"{folder(key)}/{CODEC_FILE}"


def _load(storage: Storage, path: str) -> tuple[bytes | None, tuple[Decision, ...]]:
    """The file's bytes, None if there is none, and the decisions in it, none if it is damaged."""
    try:
        data = storage.read(path)
    except FileNotFoundError:
        return None, ()
    try:
        body = json.loads(data)
        found = body["version"]
    except (ValueError, KeyError, TypeError):
        return data, ()
    if found != _VERSION:
        raise OtherVersion(
            f"is of version {found}; this release reads version {_VERSION}",
            where=storage.url_of(path),
            hint="use the release of shardline that wrote it, or delete it: the codec is decided anew",
        )
    if body.pop("hash", None) != seal(body):
        return data, ()
    return data, tuple(
        Decision(**{**decision, "table": tuple(Trial(**trial) for trial in decision["table"])})
        for decision in body["decisions"]
    )


def _to_json(decisions: tuple[Decision, ...]) -> bytes:
    body: dict[str, Any] = {"version": _VERSION, "decisions": [asdict(decision) for decision in decisions]}
    # As it will be read: tuples are lists there.
    body = json.loads(json.dumps(body))
    return (json.dumps({**body, "hash": seal(body)}, indent=1) + "\n").encode()
