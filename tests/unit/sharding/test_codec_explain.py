"""`shardline shard --explain`: before and after the data set is made."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from shardline.components.common.config import RunConfig
from shardline.components.common.storage import Storage
from shardline.components.sharding import step
from shardline.components.sharding.codec import CODEC_FILE, decided
from shardline.components.sharding.codec_choice import CANDIDATES
from shardline.components.sharding.codec_explain import explain
from shardline.components.sharding.making import shard
from shardline.components.sharding.manifest import folder
from tests.commands import shardline, write

MakeConfig = Callable[..., RunConfig]


@pytest.fixture
def make_config(make_config: MakeConfig) -> MakeConfig:
    """Row groups large enough that measuring takes little time."""
    return partial(make_config, sharding__row_group=64)


def test_explain_before_and_after_the_data_set_is_made(corpus: Path, make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(corpus, sharding__codec="auto")
    before = explain(config)
    assert before["recorded"] is None and before["shards"] == {} and not (tmp_path / "root").exists()
    manifest = shard(config)
    after = explain(config)
    made = decided(Storage(config.storage), manifest.key)
    assert after["recorded"] == str(tmp_path / "root" / folder(manifest.key) / CODEC_FILE)
    assert [decision["codec"] for decision in after["decisions"]] == [made.codec]
    assert after["shards"][made.codec]["shards"] == len(manifest.train.shards) + len(manifest.held_out.shards)
    # The vocabulary is trained on the sample, which here is the whole corpus: the preview measures nearly the same.
    ratios = [{row["codec"]: row["ratio"] for row in each["decisions"][0]["table"]} for each in (before, after)]
    assert ratios[0] == pytest.approx(ratios[1], rel=0.1)


def test_explain_a_fixed_codec_measures_what_auto_would_take(
    corpus: Path, make_config: MakeConfig, tmp_path: Path
) -> None:
    config = make_config(corpus)
    shard(config)
    explained = explain(config)
    assert explained["recorded"] is None and list(explained["shards"]) == ["zstd:3"]
    assert len(explained["decisions"][0]["table"]) == len(CANDIDATES)
    assert not (tmp_path / "root" / folder(explained["key"]) / CODEC_FILE).exists()


def test_explain_needs_no_corpus_when_the_decision_is_there(corpus: Path, make_config: MakeConfig) -> None:
    config = make_config(corpus, sharding__codec="auto")
    step.run(config)
    for path in corpus.rglob("*.txt"):
        path.unlink()
    assert explain(config)["recorded"]


def test_the_command_prints_the_table_and_the_decision(tmp_path: Path) -> None:
    write(tmp_path)
    options = ["--explain", "--set", "sharding.codec=auto", "--set", "sharding.codec_wish.goal=cheapest"]
    shown = shardline("shard", "config.yaml", *options, cwd=tmp_path)
    assert (shown.returncode, shown.stderr) == (0, "")
    lines = shown.stdout.splitlines()
    assert lines[0].split() == ["codec", "bytes", "ratio", "write", "MB/s", "decode", "MB/s", "cost", "a", "GB"]
    assert [line.split()[0] for line in lines[1 : 1 + len(CANDIDATES)]] == list(CANDIDATES)
    assert "nothing: this is a preview" in shown.stdout and not (tmp_path / "data").exists()
    made = shardline("shard", "config.yaml", *options[1:], cwd=tmp_path)
    assert made.returncode == 0 and "codec.chosen: " in made.stderr
    explained = json.loads(shardline("shard", "config.yaml", "--json", *options, cwd=tmp_path).stdout)
    assert explained["recorded"] and list(explained["shards"]) == [explained["decisions"][0]["codec"]]
    changed = shardline("shard", "config.yaml", *options[:-1], "sharding.codec_wish.goal=fastest", cwd=tmp_path)
    assert f"has changed since; to have it decided anew, delete {explained['recorded']}" in changed.stdout
