"""The blocks that codecs are tried on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from shardline.components.common.config import RunConfig
from shardline.components.common.errors import UserError
from shardline.components.common.storage import Storage
from shardline.components.sharding.codec_sample import draw_texts, pack_texts
from shardline.components.sharding.corpus import SourceFiles
from shardline.components.sharding.dataset import Dataset
from shardline.components.sharding.making import shard
from shardline.components.sharding.recipe import recipe_of

MakeConfig = Callable[..., RunConfig]


def sources_of(config: RunConfig) -> Sequence[SourceFiles]:
    return recipe_of(config).links[0].sources


def test_a_sample_comes_from_all_over_the_corpus(tmp_path: Path, make_config: MakeConfig) -> None:
    for number in range(50):
        (tmp_path / "corpus").mkdir(exist_ok=True)
        (tmp_path / "corpus" / f"{number:02}.txt").write_text(f"{number:02} " * 200)
    sources = sources_of(make_config(tmp_path / "corpus"))
    texts = draw_texts(sources, unit=600, characters=1600)
    assert sum(map(len, texts)) == 1600 and len(texts) == 16
    seen = [int(text[:2]) for text in texts]
    assert seen == sorted(seen) and seen[0] < 4 and seen[-1] > 45 and max(np.diff(seen)) <= 4
    assert draw_texts(sources, unit=600, characters=1600) == texts
    everything = draw_texts(sources, unit=600)
    assert sum(map(len, everything)) == 50 * 600 and len(everything) == 50


def test_what_cannot_be_read_is_passed_over_in_a_sample(tmp_path: Path, make_config: MakeConfig) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{\n\n{"text": "two"}\n')
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe\x00")
    sources = sources_of(make_config([tmp_path / "a.jsonl", tmp_path / "b.txt"]))
    assert draw_texts(sources, unit=8) == ["one", "two"]
    with pytest.raises(UserError, match="there is no document in the corpus"):
        draw_texts(sources_of(make_config(tmp_path / "b.txt")), unit=8)


def test_the_sample_is_packed_as_the_shards_are(corpus: Path, make_config: MakeConfig) -> None:
    config = make_config(corpus, sharding__held_out=0, sharding__unit=1 << 20, sharding__row_group=64)
    dataset = Dataset.open(Storage(config.storage), shard(config).key)
    texts = draw_texts(sources_of(config), unit=1 << 20)
    sample = pack_texts(texts, tokenizer=dataset.tokenizer(), sequence=32, row_group=64)
    split = dataset.split("train")
    assert (sample.blocks, len(sample.groups)) == (split.blocks, split.groups)
    for number, group in enumerate(sample.groups):
        assert np.array_equal(group.tokens, split.read_group(number).tokens)
    assert sample.bytes == split.facts.bytes and sample.documents == split.facts.documents
