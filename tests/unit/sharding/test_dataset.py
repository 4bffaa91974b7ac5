from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from shardline.components.common.config import RunConfig
from shardline.components.common.errors import DamagedData, UserError
from shardline.components.common.storage import Storage
from shardline.components.sharding.dataset import Dataset, SplitName
from shardline.components.sharding.inspect import verify
from shardline.components.sharding.making import shard
from shardline.components.sharding.manifest import VERSION, WEIGHTED, Manifest, folder

MakeOther = Callable[[], Dataset]


@pytest.fixture
def make_other(corpus: Path, make_config: Callable[..., RunConfig]) -> MakeOther:
    """Makes a data set of other text under another root."""

    def make() -> Dataset:
        config = make_config(corpus / "part0", root="other")
        return Dataset.open(Storage(config.storage), shard(config).key)

    return make


def read_everything(storage: Storage, key: str) -> None:
    dataset = Dataset.open(storage, key)
    dataset.all_files()
    dataset.read_beside("held_out.bin")
    dataset.tokenizer()
    names: tuple[SplitName, ...] = ("train", "held_out")
    for name in names:
        split = dataset.split(name)
        for group in range(split.groups):
            split.read_group(group).blocks()


def beside(dataset: Dataset, name: str) -> Path:
    return dataset.storage.local_path(f"{folder(dataset.manifest.key)}/{name}")


def test_row_groups_hold_the_blocks_in_order(dataset: Dataset) -> None:
    for name in ("train", "held_out"):
        split = dataset.split(name)  # type: ignore[arg-type]
        groups = [split.read_group(group).blocks() for group in range(split.groups)]
        assert np.concatenate([group.numbers for group in groups]).tolist() == list(range(split.blocks))
        assert sum(int(group.bytes.sum()) for group in groups) == split.facts.bytes
        assert sum(int((group.length - 1).sum()) for group in groups) == split.facts.tokens


@pytest.mark.parametrize(
    "what", ["shard", "manifest.json", "index.bin", "tokenizer.json", "files.json", "held_out.bin"]
)
def test_a_changed_byte_anywhere_is_noticed(dataset: Dataset, what: str) -> None:
    path = beside(dataset, what)
    if what == "shard":
        path = dataset.storage.local_path(f"shards/{dataset.manifest.train.shards[0].hash}.parquet")
    whole = path.read_bytes()
    draw = np.random.default_rng(0)
    places = {0, 3, 4, len(whole) - 1, len(whole) - 5, *draw.integers(0, len(whole), 60).tolist()}
    for place in sorted(places):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x41]) + whole[place + 1 :])
        with pytest.raises(DamagedData) as caught:
            read_everything(dataset.storage, dataset.manifest.key)
        assert str(path) in str(caught.value) and caught.value.exit_code == 5
        assert caught.value.hint
    path.write_bytes(whole)
    read_everything(dataset.storage, dataset.manifest.key)


@pytest.mark.parametrize("what", ["shard", "manifest.json", "index.bin"])
def test_a_byte_less_a_byte_more_or_nothing_at_all_is_noticed(dataset: Dataset, what: str) -> None:
    path = beside(dataset, what)
    if what == "shard":
        path = dataset.storage.local_path(f"shards/{dataset.manifest.held_out.shards[0].hash}.parquet")
    whole = path.read_bytes()
    for data in (whole[:-1], whole + b"\0", whole[: len(whole) // 2], b""):
        path.write_bytes(data)
        with pytest.raises(DamagedData, match=path.name):
            read_everything(dataset.storage, dataset.manifest.key)
    path.unlink()
    with pytest.raises(UserError if what == "manifest.json" else DamagedData, match=path.name):
        read_everything(dataset.storage, dataset.manifest.key)


def shard_path(dataset: Dataset, number: int) -> Path:
    return dataset.storage.local_path(f"shards/{dataset.manifest.train.shards[number].hash}.parquet")


@pytest.mark.parametrize("what", ["of another data set", "another one of this data set"])
def test_a_shard_in_the_place_of_another_is_noticed(dataset: Dataset, what: str, make_other: MakeOther) -> None:
    path = shard_path(dataset, 0)
    other = shard_path(make_other(), 0) if what == "of another data set" else shard_path(dataset, 1)
    path.write_bytes(other.read_bytes())
    with pytest.raises(DamagedData, match=path.name):
        read_everything(dataset.storage, dataset.manifest.key)


def test_a_shard_that_is_listed_twice_is_noticed(dataset: Dataset) -> None:
    path = beside(dataset, "manifest.json")
    body = json.loads(path.read_text())
    body["train"]["shards"].insert(0, body["train"]["shards"][0])
    path.write_text(json.dumps(body))
    with pytest.raises(DamagedData, match="its hash does not match"):
        Dataset.open(dataset.storage, dataset.manifest.key)


def test_files_that_lie_among_the_shards_are_not_read(dataset: Dataset, make_other: MakeOther) -> None:
    path, foreign = shard_path(dataset, 0), shard_path(make_other(), 0)
    before = list(dataset.texts("train"))
    (path.parent / foreign.name).write_bytes(foreign.read_bytes())
    (path.parent / f"copy-{path.name}").write_bytes(path.read_bytes())
    (path.parent / "notes.txt").write_text("nothing of ours")
    again = Dataset.open(dataset.storage, dataset.manifest.key)
    assert list(again.texts("train")) == before
    assert verify(again) == []


def test_a_manifest_of_the_future_is_refused_and_left_alone(dataset: Dataset) -> None:
    path = beside(dataset, "manifest.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": WEIGHTED + 1}))
    with pytest.raises(
        DamagedData, match=rf"version {WEIGHTED + 1}; this release reads versions {VERSION} and {WEIGHTED}.*newer"
    ):
        Dataset.open(dataset.storage, dataset.manifest.key)
    assert path.exists()


def test_a_manifest_survives_json(dataset: Dataset) -> None:
    assert Manifest.from_json(dataset.manifest.to_json(), where="test") == dataset.manifest


def test_the_index_names_the_tokens_of_each_row_group(dataset: Dataset) -> None:
    """A reader may fetch a column chunk alone: it lies where the index says."""
    split = dataset.split("train")
    shard = split.facts.shards[0]
    data = dataset.storage.read(f"shards/{shard.hash}.parquet")
    entry = dataset._index[0]
    start, length = int(entry["tokens_offset"]), int(entry["tokens_length"])
    assert start >= 4 and start + length <= int(entry["length"]) and len(data[start : start + length]) == length
