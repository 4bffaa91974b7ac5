"""Which codec a table of measurements and a wish come to."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.components.common.config.data_schema import CodecWish
from shardline.components.sharding.codec_choice import BETTER, CANDIDATES, NEAR, Choice, Trial, choose, cost, score

RAW = 1_000_000


def trial(codec: str, ratio: float, *, write: float = 100.0, decode: float = 500.0) -> Trial:
    return Trial(codec=codec, raw=RAW, size=round(RAW * ratio), write_mb_s=write, decode_mb_s=decode)


#: As measured on the sources of Python's standard library.
TABLE = (
    trial("zstd:3", 0.313, write=143, decode=620),
    trial("snappy", 0.453, write=295, decode=415),
    trial("zstd:1", 0.345, write=236, decode=540),
    trial("gzip:6", 0.306, write=24, decode=220),
    trial("none", 1.009, write=786, decode=524),
    trial("lz4", 0.448, write=299, decode=900),
    trial("zstd:9", 0.290, write=33, decode=550),
    trial("zstd:19", 0.263, write=2.4, decode=445),
    trial("brotli:5", 0.287, write=26, decode=257),
)


def chosen(table: tuple[Trial, ...] = TABLE, *, current: str | None = None, **wish: object) -> Choice:
    return choose(table, CodecWish(**wish), token_bytes=2, current=current)  # type: ignore[arg-type]


def test_smallest_is_the_smallest_that_keeps_ahead_of_training() -> None:
    assert chosen(goal="smallest", write_speed=0).codec == "zstd:19"
    # 24e6 tokens/s x 2 bytes x 10 = 480 MB/s: zstd:19's 445 will not do.
    fast = chosen(goal="smallest", tokens_per_second=24e6, headroom=10.0)
    assert fast.codec == "zstd:9"
    assert "of the 5 codecs, of 9 tried, that one thread decodes at 480 MB/s or more" in fast.reason
    assert "10 x 24,000,000 tokens/s of 2 bytes" in fast.reason
    # Of 4 bytes it is 960 MB/s.
    wish = CodecWish(goal="smallest", tokens_per_second=24e6, headroom=10.0)
    assert "none reaches the 960 MB/s" in choose(TABLE, wish, token_bytes=4).reason


@pytest.mark.parametrize("goal", ["smallest", "cheapest"])
def test_what_takes_for_ever_to_write_is_not_taken(goal: str) -> None:
    # zstd:19 is the smallest, and writes 2.4 MB a second; brotli:5 is next, and within 5 % of it is zstd:9.
    choice = chosen(goal=goal)
    assert choice.codec == "zstd:9" and "writes at 10 MB/s or more" in choice.reason
    assert chosen(goal=goal, write_speed=100).codec == "zstd:3"
    nothing = chosen(goal=goal, write_speed=1000)
    assert nothing.codec == "none" and "none reaches the 1000 MB/s" in nothing.reason


@pytest.mark.parametrize("goal", ["smallest", "cheapest"])
def test_where_none_keeps_ahead_the_one_that_decodes_fastest_is_taken(goal: str) -> None:
    choice = chosen(goal=goal, tokens_per_second=1e9)
    assert choice.codec == "lz4" and "decodes fastest, at 900 MB/s a thread: none reaches" in choice.reason


def test_cheapest_counts_what_storage_transfer_and_cores_cost() -> None:
    wish = CodecWish(goal="cheapest", storage_price=0.02, months=10.0, transfer_price=0.05, reads=4.0, write_speed=0)
    assert cost(TABLE[0], wish) == pytest.approx(0.313 * (0.02 * 10 + 0.05 * 4))
    assert choose(TABLE, wish, token_bytes=2).codec == "zstd:19"
    priced = wish.model_copy(update={"core_price": 3.6})
    # A GB is written in 1000/143 s and decoded four times, in 1000/620 s each; an hour has 3600 s.
    assert cost(TABLE[0], priced) == pytest.approx(0.313 * 0.4 + 0.001 * (1000 / 143 + 4 * 1000 / 620))
    # zstd:19 saves 0.02 a GB and takes 400 s more to write, which is 0.4.
    assert choose(TABLE, priced, token_bytes=2).codec == "zstd:3"


def test_where_nothing_costs_anything_the_most_common_codec_is_taken() -> None:
    choice = chosen(goal="cheapest", storage_price=0.0, transfer_price=0.0)
    assert choice.codec == CANDIDATES[0]
    assert chosen(TABLE[::-1], goal="cheapest", storage_price=0.0, transfer_price=0.0) == choice
    assert chosen(goal="cheapest", storage_price=0.0, transfer_price=0.0, current="lz4").codec == "lz4"


def test_fastest_weighs_the_storage_against_decoding() -> None:
    assert score(TABLE[0], CodecWish(goal="fastest", bandwidth=100.0)) == pytest.approx(1000 * (0.00313 + 1 / 620))
    assert chosen(goal="fastest", bandwidth=10.0).codec == "zstd:19"
    assert chosen(goal="fastest", bandwidth=5000.0).codec == "lz4"
    # No floor: training may consume what it likes.
    assert chosen(goal="fastest", bandwidth=5000.0, tokens_per_second=1e12).codec == "lz4"


def test_of_equally_good_ones_the_most_common_is_taken_and_the_other_named() -> None:
    table = (trial("brotli:5", 0.300), trial("zstd:9", 0.310), trial("zstd:1", 0.340))
    choice = chosen(table)
    assert choice.codec == "zstd:9"
    assert "among the smallest" in choice.reason and ": 3.3% larger than brotli:5, but more common" in choice.reason
    assert chosen((trial("brotli:5", 0.300), trial("zstd:9", 0.300 * (1 + NEAR) + 0.001))).codec == "brotli:5"


@given(st.lists(st.floats(0.98, 1.02), min_size=18, max_size=18), st.sampled_from(["smallest", "cheapest", "fastest"]))
def test_noise_below_the_margin_does_not_flip_a_tie(noise: list[float], goal: str) -> None:
    table = tuple(
        trial(codec, 0.3, write=100 * noise[2 * number], decode=500 * noise[2 * number + 1])
        for number, codec in enumerate(CANDIDATES)
    )
    assert chosen(table, goal=goal, core_price=0.05).codec == CANDIDATES[0]


@given(st.integers(), st.sampled_from(["smallest", "cheapest", "fastest"]), st.floats(1e3, 1e9))
def test_the_order_of_the_table_does_not_matter(seed: int, goal: str, rate: float) -> None:
    shuffled = list(TABLE)
    random.Random(seed).shuffle(shuffled)
    assert chosen(tuple(shuffled), goal=goal, tokens_per_second=rate) == chosen(goal=goal, tokens_per_second=rate)


def test_a_later_source_keeps_the_codec_unless_another_is_better_by_the_margin() -> None:
    near = (trial("zstd:3", 0.300), trial("zstd:19", 0.300 / (1 + BETTER) + 0.001))
    kept = chosen(near, current="zstd:3")
    assert kept.codec == "zstd:3"
    assert kept.reason == "zstd:3 is kept: it is 14.6% larger than zstd:19, and 15% is what a change takes"
    assert chosen(near).codec == "zstd:19"
    changed = chosen((trial("zstd:3", 0.300), trial("zstd:19", 0.300 / (1 + BETTER) - 0.001)), current="zstd:3")
    assert changed.codec == "zstd:19"
    assert changed.reason.endswith("; zstd:3, taken before, is on this source 15.4% larger than zstd:19")


def test_a_codec_that_is_the_best_is_kept() -> None:
    assert chosen(current="zstd:19", write_speed=0).reason == "zstd:19 is kept: no other is better"


def test_a_codec_that_has_become_too_slow_is_not_kept() -> None:
    choice = chosen(tokens_per_second=24e6, current="zstd:19")
    assert choice.codec == "zstd:9" and "zstd:19, taken before, decodes or writes too slowly" in choice.reason
