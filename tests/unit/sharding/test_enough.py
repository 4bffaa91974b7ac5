"""What is said of a corpus that will not do, or that is another one than before."""

from __future__ import annotations

import pytest

from shardline.components.common.config import RunConfig, parse
from shardline.components.common.errors import UserError
from shardline.components.sharding.enough import check_budget, check_counts, first_change
from shardline.components.sharding.job import Left

CONFIG = """
{version: 1, run: x, storage: /d, corpus: /c,
 training: {steps: 1, global_batch: 2, microbatch: 2, sequence: 64}}
"""


@pytest.fixture
def config() -> RunConfig:
    return parse(CONFIG, source="x").config


@pytest.mark.parametrize(
    ("reasons", "remedy"),
    [
        ({"no field 'text'": 5, "not valid JSON": 1}, "set corpus.text_field"),
        ({"field 'text' is not a string": 6}, "set corpus.text_field"),
        ({"no field 'text'": 1, "not UTF-8": 5}, "leave those files out"),
    ],
)
def test_the_hint_is_for_the_reason_that_skips_most(config: RunConfig, reasons: dict[str, int], remedy: str) -> None:
    left = Left(6, 600, reasons, ["a.jsonl:1: no field 'text'"])
    with pytest.raises(UserError, match="cannot be used") as caught:
        check_budget(config, left, 1000)
    assert caught.value.hint is not None and caught.value.hint.startswith(remedy)


@pytest.mark.parametrize("counts", [{"train": 3, "held_out": 0}, {"train": 0, "held_out": 3}])
def test_few_documents_are_told_how_to_become_more(counts: dict[str, int]) -> None:
    with pytest.raises(UserError, match="a text file is one document: split it, or use JSONL or Parquet"):
        check_counts(counts, Left(), share=0.01, sources=["corpus"])


def test_the_first_file_that_changed_is_named() -> None:
    before = [("a", 1), ("b", 2000), ("c", 3)]
    assert first_change(before, list(before)) is None
    assert first_change(before, [("a", 1), ("c", 3)]) == "b is gone"
    assert first_change(before, [("a", 1), ("aa", 1), ("b", 2000), ("c", 3)]) == "aa is new"
    assert first_change(before, [("a", 1), ("b", 2001), ("d", 3)]) == "b had 2,000 bytes and has 2,001"
