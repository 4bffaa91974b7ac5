"""Which codec meets a wish: measured trials in, a codec and the reason out. Pure: no disk, no clock.

Called by `codec`, which measures and records. What counts is one number a codec, the lower the better (`score`):

* smallest: bytes.
* cheapest: what it costs to keep and to read a GB of tokens.
* fastest: how long one loader thread takes for a GB of tokens, which it fetches and then decodes.

For smallest and cheapest one thread has to decode `headroom` times faster than training consumes, and to write at
`write_speed`. A codec whose number
is within `NEAR` of the best counts as good as the best, and of those the most common one is taken: what others can read
and know is worth more than a difference that the next measurement may turn round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardline.components.common.config.data_schema import CodecWish

#: Each is the best of its kind somewhere: levels between zstd 3, 9 and 19 differ by little, brotli's above 5 and zstd's
#: above 19 take ten times as long for a few hundredths. In order of how common they are in Parquet files and readers.
CANDIDATES = (
    "zstd:3",
    "snappy",
    "zstd:1",
    "gzip:6",
    "none",
    "lz4",
    "zstd:9",
    "zstd:19",
    "brotli:5",
)
#: Up to this share above the best is as good as the best.
NEAR = 0.05
#: A later source keeps the codec of the one before it, unless another one is better by more than this share.
BETTER = 0.15


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A codec on the sample. A MB is 10^6 bytes of tokens as they are in memory; times are of one thread.

    Attributes:
        raw: bytes of the sample's tokens in memory.
        size: bytes of the shard that holds them, with its other columns.
        write_mb_s: MB/s of writing, hashes included.
        decode_mb_s: MB/s of comparing the hash and decoding, as for each row group that is read.
    """

    codec: str
    raw: int
    size: int
    write_mb_s: float
    decode_mb_s: float

    @property
    def ratio(self) -> float:
        """Bytes on disk for a byte of tokens."""
        return self.size / self.raw


@dataclass(frozen=True)
class Choice:
    codec: str
    reason: str


def needed_mb_s(wish: CodecWish, *, token_bytes: int) -> float:
    """MB/s at which one thread has to decode tokens of `token_bytes` bytes."""
    return wish.tokens_per_second * token_bytes * wish.headroom / 1e6


def score(trial: Trial, wish: CodecWish) -> float:
    """What `wish.goal` counts; lower is better. In bytes for a byte of tokens, in money a GB, or in seconds a GB."""
    if wish.goal == "smallest":
        return trial.ratio
    if wish.goal == "cheapest":
        return cost(trial, wish)
    return 1e3 * (trial.ratio / wish.bandwidth + 1 / trial.decode_mb_s)


def cost(trial: Trial, wish: CodecWish) -> float:
    """Of a GB of tokens: its bytes kept for so many months and read so often, and the cores' time if it has a price."""
    bytes_kept = trial.ratio * (wish.storage_price * wish.months + wish.transfer_price * wish.reads)
    core_hours = 1e3 * (1 / trial.write_mb_s + wish.reads / trial.decode_mb_s) / 3600
    return bytes_kept + core_hours * wish.core_price


def choose(table: Sequence[Trial], wish: CodecWish, *, token_bytes: int, current: str | None = None) -> Choice:
    """The codec of `table` that meets `wish`.

    Args:
        table: the trials; at least one. Of equally good ones the first in `CANDIDATES` is taken.
        token_bytes: bytes of a token in memory.
        current: what the shards so far are compressed with, if there are any.
    """
    needed = 0.0 if wish.goal == "fastest" else needed_mb_s(wish, token_bytes=token_bytes)
    asked = f"{wish.headroom:g} x {wish.tokens_per_second:,.0f} tokens/s of {token_bytes} bytes"
    decodable = [trial for trial in table if trial.decode_mb_s >= needed]
    if not decodable:
        chosen = _first_of([trial for trial in table if trial.decode_mb_s * (1 + NEAR) >= _highest_rate(table)])
        return Choice(
            chosen.codec,
            f"{chosen.codec} decodes fastest, at {chosen.decode_mb_s:.0f} MB/s a thread: none reaches the "
            f"{needed:.0f} MB/s asked for ({asked})",
        )
    least = 0.0 if wish.goal == "fastest" else wish.write_speed
    usable = [trial for trial in decodable if trial.write_mb_s >= least]
    if not usable:
        chosen = max(decodable, key=lambda trial: trial.write_mb_s)
        return Choice(
            chosen.codec,
            f"{chosen.codec} writes fastest, at {chosen.write_mb_s:.1f} MB/s a thread: none reaches the {least:g} MB/s "
            f"asked for, of those that decode at {needed:.0f} MB/s or more ({asked})",
        )
    lowest = min(score(trial, wish) for trial in usable)
    best = _first_of([trial for trial in usable if score(trial, wish) == lowest])
    kept = next((trial for trial in usable if trial.codec == current), None)
    if kept is not None and score(kept, wish) <= lowest * (1 + BETTER):
        return Choice(kept.codec, f"{kept.codec} is kept: {_why_kept(kept, best, wish)}")
    chosen = _first_of([trial for trial in usable if score(trial, wish) <= lowest * (1 + NEAR)])
    parts = [f"{chosen.codec} is {'' if chosen is best else 'among '}{_praise(chosen, wish)}"]
    if needed:
        fast = f"that one thread decodes at {needed:.0f} MB/s or more ({asked}) and writes at {least:g} MB/s or more"
        parts.append(f" of the {len(usable)} codecs, of {len(table)} tried, {fast}")
    if chosen is not best:
        parts.append(f": {_worse(chosen, best, wish)}, but more common")
    if kept is not None:
        parts.append(f"; {current}, taken before, is on this source {_worse(kept, chosen, wish)}")
    elif current is not None:
        parts.append(f"; {current}, taken before, decodes or writes too slowly on this source")
    return Choice(chosen.codec, "".join(parts))


def _first_of(trials: Sequence[Trial]) -> Trial:
    """The most common one."""
    return min(trials, key=lambda trial: _rank(trial.codec))


def _highest_rate(table: Sequence[Trial]) -> float:
    return max(trial.decode_mb_s for trial in table)


def _rank(codec: str) -> tuple[int, str]:
    return CANDIDATES.index(codec) if codec in CANDIDATES else len(CANDIDATES), codec


def _praise(chosen: Trial, wish: CodecWish) -> str:
    number = score(chosen, wish)
    return {
        "smallest": f"the smallest, {number:.1%} of the tokens' size,",
        "cheapest": f"the cheapest, {number:.4f} a GB of tokens,",
        "fastest": f"the fastest, {number:.2f} s for a thread to read and decode a GB of tokens",
    }[wish.goal]


def _worse(worse: Trial, better: Trial, wish: CodecWish) -> str:
    word = {"smallest": "larger", "cheapest": "dearer", "fastest": "slower"}[wish.goal]
    return f"{score(worse, wish) / score(better, wish) - 1:.1%} {word} than {better.codec}"


def _why_kept(kept: Trial, best: Trial, wish: CodecWish) -> str:
    if score(kept, wish) == score(best, wish):
        return "no other is better"
    return f"it is {_worse(kept, best, wish)}, and {BETTER:.0%} is what a change takes"
