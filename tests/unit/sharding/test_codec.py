"""Codecs measured, decided on once, and obeyed: by whoever writes shards, whatever happens in between."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from shardline.components.common.config import RunConfig
from shardline.components.common.config.data_schema import CodecWish
from shardline.components.common.errors import ConfigError, DamagedData
from shardline.components.common.runfolder import run_storage
from shardline.components.common.storage import Storage
from shardline.components.common.streams import read_all
from shardline.components.sharding import step
from shardline.components.sharding.codec import CODEC_FILE, Decision, decide, decided, decisions_of, measure
from shardline.components.sharding.codec_choice import CANDIDATES, choose
from shardline.components.sharding.codec_sample import Sample
from shardline.components.sharding.dataset import Dataset
from shardline.components.sharding.making import shard
from shardline.components.sharding.manifest import codecs_of, folder, seal
from shardline.components.sharding.packing import Packer, Piece
from shardline.components.sharding.recipe import recipe_of
from shardline.components.sharding.shardfile import decode_group, decode_tokens, read_footer
from shardline.components.sharding.shardwriter import ShardWriter

MakeConfig = Callable[..., RunConfig]
ShardUntil = Callable[[RunConfig, str, int], None]
Prose = Callable[[int, int], str]
#: No codec is too slow for this one, so that sizes alone decide, and they are the same on every machine.
BY_SIZE = CodecWish(goal="smallest", tokens_per_second=1.0, headroom=1.0, write_speed=0.0)
SEQUENCE = 512
EVERY_CODEC = (*CANDIDATES, "zstd:22", "gzip:1", "gzip:9", "brotli:0", "brotli:11")


def sample_of(tokens: np.ndarray[Any, np.dtype[np.uint16]]) -> Sample:
    packer = Packer(sequence=SEQUENCE, row_group=32, dtype=np.uint16, end_of_text=0)
    groups = [*packer.add(Piece(ids=tokens, sizes=np.ones(len(tokens), np.int32), file=0, offset=0)), *packer.finish()]
    return Sample(groups=groups, documents=1, bytes=len(tokens))


def text_like(count: int = 60_000) -> Sample:
    """Words that come again: the more a codec looks for, the more it finds."""
    draw = np.random.default_rng(0)
    words = [draw.integers(1, 4000, draw.integers(1, 9)) for _ in range(600)]
    ids = np.concatenate([words[number] for number in draw.zipf(1.3, count) % 600])
    return sample_of(ids[:count].astype(np.uint16))


def noise(count: int = 60_000) -> Sample:
    """What no codec makes smaller."""
    return sample_of(np.random.default_rng(1).integers(1, 1 << 16, count).astype(np.uint16))


def never() -> Sample:
    raise AssertionError("measured again")


@pytest.fixture
def make_config(make_config: MakeConfig) -> MakeConfig:
    """Row groups large enough that measuring takes little time."""
    return partial(make_config, sharding__row_group=64)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path / "root"))


def path_of(storage: Storage, key: str = "k") -> Path:
    return storage.local_path(f"{folder(key)}/{CODEC_FILE}")


@pytest.mark.parametrize("codec", EVERY_CODEC)
def test_with_any_codec_blocks_come_back_and_other_readers_open_them(codec: str, tmp_path: Path) -> None:
    sample = text_like()
    writer = ShardWriter(sequence=SEQUENCE, dtype=np.uint16, codec=codec)
    try:
        for group in sample.groups:
            writer.write(group)
        shard_, groups, file = writer.finish()
        data = file.read()
    finally:
        writer.close()
    assert shard_.codec == codec
    footer = read_footer(data[shard_.footer :])
    name = footer.row_group(0).column(0).compression
    assert name.lower().startswith("uncompressed" if codec == "none" else codec.partition(":")[0])
    for number, (entry, group) in enumerate(zip(groups, sample.groups, strict=True)):
        offset, length = int(entry["offset"]), int(entry["length"])
        part = data[offset : offset + length]
        sequence, dtype = group.tokens.shape[1] - 1, group.tokens.dtype
        tokens = decode_tokens(entry, part, sequence=sequence, dtype=dtype, codec=codec)
        read = decode_group(footer, number, size=shard_.size, offset=offset, data=part, tokens=tokens, first=0)
        assert np.array_equal(read.tokens, group.tokens) and np.array_equal(read.starts, group.starts)
    path = tmp_path / "a.parquet"
    path.write_bytes(data)
    rows = duckdb.sql(f"select tokens from '{path}'").fetchall()
    assert b"".join(row[0] for row in rows) == b"".join(group.tokens.tobytes() for group in sample.groups)


@pytest.mark.parametrize("codec", ["zstd", "zstd:0", "zstd:23", "gzip:0", "gzip:10", "brotli:12", "lz4:1", "auto:1"])
def test_a_codec_that_there_is_not_is_refused(codec: str, make_config: MakeConfig) -> None:
    with pytest.raises(ConfigError, match=rf'sharding\.codec = "{codec}": .*gzip:LEVEL \(1 to 9\)'):
        make_config("a.txt", sharding__codec=codec)


def test_the_table_has_what_the_writer_makes_of_the_sample() -> None:
    sample = text_like()
    table = {trial.codec: trial for trial in measure(sample, codecs=("none", "lz4", "zstd:1", "zstd:19"))}
    assert {trial.raw for trial in table.values()} == {sum(group.tokens.nbytes for group in sample.groups)}
    assert table["none"].ratio > 1 > table["lz4"].ratio > table["zstd:1"].ratio > table["zstd:19"].ratio > 0
    assert all(trial.write_mb_s > 0 and trial.decode_mb_s > 0 for trial in table.values())
    writer = ShardWriter(sequence=SEQUENCE, dtype=np.uint16, codec="zstd:1")
    for group in sample.groups:
        writer.write(group)
    assert writer.finish()[0].size == table["zstd:1"].size
    writer.close()


def test_a_decision_is_recorded_with_its_evidence_and_never_taken_again(storage: Storage) -> None:
    sample = text_like()
    made = decide(storage, "k", wish=BY_SIZE, sample=lambda: sample)
    choice = choose(made.table, BY_SIZE, token_bytes=2)
    assert (made.codec, made.reason) == (choice.codec, choice.reason) and made.codec != "none"
    assert [trial.codec for trial in made.table] == list(CANDIDATES)
    assert made.wish == BY_SIZE.model_dump() and set(made.versions) >= {"shardline", "pyarrow"}
    assert made.sample["blocks"] == sample.blocks and made.sample["token_bytes"] == 2
    assert made.scores == {trial.codec: trial.ratio for trial in made.table}
    written = path_of(storage).read_bytes()
    assert decide(storage, "k", wish=CodecWish(goal="fastest"), sample=never) == made
    assert decided(storage, "k") == made and decisions_of(storage, "k") == (made,)
    assert path_of(storage).read_bytes() == written


def test_of_several_that_decide_at_once_all_obey_the_first(storage: Storage) -> None:
    wishes = [BY_SIZE, CodecWish(goal="cheapest", storage_price=0, transfer_price=0), BY_SIZE, BY_SIZE]
    together = threading.Barrier(len(wishes))
    found: list[Decision] = []

    def take(wish: CodecWish) -> None:
        def sample() -> Sample:
            together.wait(timeout=60)
            return text_like(count=2000)

        found.append(decide(storage, "k", wish=wish, sample=sample))

    threads = [threading.Thread(target=take, args=(wish,)) for wish in wishes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == len(wishes) and all(decision == decided(storage, "k") for decision in found)
    assert len(decisions_of(storage, "k")) == 1


def test_on_an_object_store_the_first_decision_holds_too() -> None:
    storage = Storage("memory://codec-test")
    try:
        made = decide(storage, "k", wish=BY_SIZE, sample=lambda: text_like(count=2000))
        assert decide(storage, "k", wish=CodecWish(goal="fastest"), sample=never) == made
        assert decide(storage, "k", wish=BY_SIZE, sample=lambda: text_like(count=2000), source=1).source == 1
        assert [decision.source for decision in decisions_of(storage, "k")] == [0, 1]
    finally:
        storage.delete_tree("")


def test_a_damaged_decision_is_taken_anew(storage: Storage) -> None:
    sample = text_like(count=2000)
    decide(storage, "k", wish=BY_SIZE, sample=lambda: sample)
    path = path_of(storage)
    whole = path.read_bytes()
    codec = whole.index(b'"codec"') + 11
    for damaged in (
        b"",
        b"[]",
        b"{",
        b"null",
        whole[: len(whole) // 2],
        whole[:codec] + bytes([whole[codec] ^ 1]) + whole[codec + 1 :],
    ):
        path.write_bytes(damaged)
        assert decisions_of(storage, "k") == ()
        with pytest.raises(DamagedData, match=rf"{CODEC_FILE}: holds no decision.*run `shardline shard` again"):
            decided(storage, "k")
        assert decide(storage, "k", wish=BY_SIZE, sample=lambda: sample) == decided(storage, "k")
    path.unlink()
    with pytest.raises(DamagedData, match="holds no decision"):
        decided(storage, "k")


def test_a_decision_of_a_later_release_is_refused_and_left_alone(storage: Storage) -> None:
    path = path_of(storage)
    path.parent.mkdir(parents=True)
    path.write_text('{"version": 2, "decisions": {}}')
    with pytest.raises(DamagedData, match=r"version 2; this release reads version 1.*delete it"):
        decide(storage, "k", wish=BY_SIZE, sample=never)
    assert json.loads(path.read_text())["version"] == 2


def test_a_later_source_may_take_another_codec_as_a_second_decision(storage: Storage) -> None:
    first = replace(decide(storage, "k", wish=BY_SIZE, sample=noise), codec="none")
    record(storage, first)
    second = decide(storage, "k", wish=BY_SIZE, sample=text_like, source=1)
    assert second.codec != "none" and "; none, taken before, is on this source" in second.reason
    third = decide(storage, "k", wish=BY_SIZE, sample=noise, source=2)
    assert third.codec == second.codec and third.reason.startswith(f"{second.codec} is kept: ")
    assert decisions_of(storage, "k") == (first, second, third)
    assert decide(storage, "k", wish=BY_SIZE, sample=never, source=1) == second
    assert decided(storage, "k", source=2) == third


def test_what_no_codec_makes_smaller_gets_the_most_common_one(storage: Storage) -> None:
    assert decide(storage, "k", wish=BY_SIZE, sample=noise).codec == CANDIDATES[0]


def test_a_codec_that_is_no_candidate_any_more_is_measured_beside_them(storage: Storage) -> None:
    first = decide(storage, "k", wish=BY_SIZE, sample=text_like)
    record(storage, replace(first, codec="gzip:9"))
    second = decide(storage, "k", wish=BY_SIZE, sample=noise, source=1)
    assert second.codec == "gzip:9" and [trial.codec for trial in second.table] == [*CANDIDATES, "gzip:9"]


def record(storage: Storage, *decisions: Decision, key: str = "k") -> None:
    body: dict[str, Any] = {"version": 1, "decisions": [asdict(decision) for decision in decisions]}
    body = json.loads(json.dumps(body))
    path_of(storage, key).write_text(json.dumps({**body, "hash": seal(body)}))


# data sets


def test_any_codec_and_auto_give_the_same_data_set(corpus: Path, make_config: MakeConfig) -> None:
    expected = shard(make_config(corpus, root="expected"))
    for codec in ("gzip:6", "brotli:5", "auto"):
        workers = 2 if codec == "auto" else 1
        config = make_config(corpus, root=codec, sharding__codec=codec, sharding__workers=workers)
        manifest = shard(config)
        assert manifest.key == expected.key == recipe_of(config).links[-1].key
        assert manifest.fingerprint == expected.fingerprint
        taken = decided(Storage(config.storage), manifest.key).codec if codec == "auto" else codec
        assert list(codecs_of(manifest)) == [taken]
        dataset = Dataset.open(Storage(config.storage), manifest.key)
        assert sum(1 for _ in dataset.texts("train")) == manifest.train.documents
    other_wish = make_config(corpus, sharding__codec="auto", sharding__codec_wish={"goal": "fastest"})
    assert recipe_of(other_wish).links[-1].key == expected.key


def test_a_restart_obeys_the_decision_that_it_finds(
    corpus: Path, make_config: MakeConfig, shard_until: ShardUntil
) -> None:
    config = make_config(corpus, sharding__codec="auto")
    storage, key = Storage(config.storage), recipe_of(config).links[-1].key

    shard_until(config, "pack", 2)
    first = decided(storage, key)
    other = "lz4" if first.codec != "lz4" else "snappy"
    record(storage, replace(first, codec=other), key=key)
    told: list[Decision] = []
    manifest = shard(config, on_codec=told.append)
    assert [decision.codec for decision in told] == [other] and decided(storage, key).codec == other
    assert set(codecs_of(manifest)) == {first.codec, other}
    assert {shard.codec for shard in manifest.train.shards[2:]} == {other}
    assert manifest.fingerprint == shard(make_config(corpus, root="other")).fingerprint


def test_the_decision_is_an_event_with_its_reason_and_a_fact(corpus: Path, make_config: MakeConfig) -> None:
    config = make_config(corpus, sharding__codec="auto")
    facts = step.run(config)
    made = decided(Storage(config.storage), facts["key"])
    [event] = [record for record in read_all(run_storage(config).at("events")) if record["name"] == "codec.chosen"]
    assert event["reason"] == made.reason
    assert event["data"] == {"codec": made.codec, "source": 0, "goal": "smallest"}
    assert facts["codecs"] == [made.codec]
    step.run(config)
    names = [record["name"] for record in read_all(run_storage(config).at("events"))]
    assert names.count("codec.chosen") == 1
