"""What belongs to a run of another config is refused, with the keys that differ and both values."""

from __future__ import annotations

import json

import pytest

from shardline.components.common import config as configs
from shardline.components.common.config import RunConfig
from shardline.components.common.config.identity import check_identity, identity_hash, identity_of
from shardline.components.common.errors import UserError
from tests.commands import SMALL


def config(*overrides: str) -> RunConfig:
    return configs.parse(SMALL, source="x", overrides=overrides).config


def check(now: RunConfig, before: RunConfig, **changes: object) -> None:
    keys = json.loads(json.dumps({**identity_of(before), **changes}))
    kept = {path: value for path, value in keys.items() if value != "absent"}
    changed = f"{identity_hash(before)}{changes}" if changes else identity_hash(before)
    check_identity(now, kept, hash=changed, where="the checkpoint")


def test_the_same_run_may_be_longer_or_laid_out_otherwise() -> None:
    check(config("training.steps=9", "resources.processes=2", "training.checkpoint.async=false"), config())


def test_each_key_that_differs_is_named_with_both_values() -> None:
    with pytest.raises(UserError) as error:
        check(config("training.seed=7", "model.dim=64"), config())
    told = str(error.value)
    assert told.startswith("the checkpoint: belongs to a run of another config: ")
    assert "training.seed is 0 there and 7 here" in told and "model.dim is null there and 64 here" in told
    assert "tokenizer" not in told


def test_a_key_that_is_newer_than_the_checkpoint_is_no_difference() -> None:
    check(config(), config(), **{"training.window": "absent"})
    with pytest.raises(UserError, match="gone_since is 1 there and not set here"):
        check(config(), config(), gone_since=1)


def test_another_source_is_a_difference() -> None:
    mixed = config('corpus={"sources": {"b": {"urls": "stdlib:csv"}, "c": {"urls": "stdlib:json"}}}')
    with pytest.raises(UserError, match=r"corpus\.sources\.c\.urls is not set there"):
        check(mixed, config('corpus={"sources": {"b": {"urls": "stdlib:csv"}}}'))


def test_without_the_keys_the_hash_alone_decides() -> None:
    check_identity(config(), {}, hash=identity_hash(config()), where="x")
    with pytest.raises(UserError, match="another config; set it back"):
        check_identity(config(), {}, hash="other", where="x")
