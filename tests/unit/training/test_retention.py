"""Which checkpoints stay: never fewer than the rules say, never the newest sound one, never a pinned one."""

from __future__ import annotations

import itertools

import pytest

from shardline.components.common import config as configs
from shardline.components.common.config.training_schema import Keep
from shardline.components.common.errors import ConfigError, Superseded
from shardline.components.common.owner import Lease
from shardline.components.common.storage import Storage
from shardline.components.training.checkpoint import catalog, retention
from tests.commands import SMALL
from tests.unit.training.checkpoint_support import flip, save, steps


def fill(run: Storage, lease: Lease, count: int = 6) -> list[catalog.CheckpointRecord]:
    """Steps 10, 20 ...; the loss is lowest at 20, then at 40."""
    losses = [5.0, 1.0, 4.0, 2.0, 4.5, 3.0]
    return [save(run, step=10 * (n + 1), value=1.0, fence=lease.fence, loss=losses[n]) for n in range(count)]


@pytest.mark.parametrize(
    ("keep", "stay"),
    [
        (Keep(), [60]),
        (Keep(last=2), [60, 50]),
        (Keep(last=9), [60, 50, 40, 30, 20, 10]),
        (Keep(last=1, every=20), [60, 40, 20]),
        (Keep(last=1, best=2), [60, 40, 20]),
        (Keep(last=2, every=30, best=1), [60, 50, 30, 20]),
    ],
)
def test_the_rules_add_up(run: Storage, lease: Lease, keep: Keep, stay: list[int]) -> None:
    records = fill(run, lease)
    going = {record.step for record in retention.expendable(catalog.committed(run), keep)}
    assert going == {record.step for record in records} - set(stay)
    assert [record.step for record in retention.prunable(run, keep)] == sorted(going)
    removed = list(retention.prune(run, keep, newest=records[-1], check=lease.check))
    assert removed == sorted(going)
    assert steps(run) == stay
    assert len([name for name in run.names("checkpoints") if name.startswith("step-")]) == len(stay)


def test_a_pinned_one_stays_until_it_is_no_longer_pinned(run: Storage, lease: Lease) -> None:
    records = fill(run, lease, 3)
    catalog.pin(run, records[0])
    assert list(retention.prune(run, Keep(), newest=records[-1], check=lease.check)) == [20]
    catalog.pin(run, records[0], pinned=False)
    assert list(retention.prune(run, Keep(), newest=records[-1], check=lease.check)) == [10]


def test_the_newest_that_is_sound_stays_where_newer_ones_are_damaged(run: Storage, lease: Lease) -> None:
    records = fill(run, lease, 4)
    for record in records[2:]:
        flip(run.local_path(f"{record.folder}/g000001-00000.safetensors"), -1)
    assert [record.step for record in retention.prunable(run, Keep())] == [10, 30]


def test_who_was_superseded_removes_nothing(run: Storage, lease: Lease) -> None:
    records = fill(run, lease, 3)

    def check() -> None:
        raise Superseded("another process has taken this run over")

    with pytest.raises(Superseded):
        list(retention.prune(run, Keep(), newest=records[-1], check=check))
    assert steps(run) == [30, 20, 10]


def test_a_removal_that_is_cut_short_leaves_nothing_that_counts(
    run: Storage, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = fill(run, lease, 2)
    with monkeypatch.context() as patch:
        patch.setattr(Storage, "delete_tree", lambda self, path: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            catalog.remove(run, records[0])
    assert steps(run) == [20]
    assert catalog.unfinished(run, catalog.committed(run)) == [records[0].folder]


def test_equal_losses_keep_the_later(run: Storage, lease: Lease) -> None:
    records = [save(run, step=step, value=1.0, fence=lease.fence, loss=1.0) for step in (1, 2, 3)]
    kept = retention.expendable(list(reversed(records)), Keep(last=1, best=2))
    assert [record.step for record in kept] == [1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3", Keep(last=3)),
        ("null", None),
        ("{last: 2, every: 1000, best: 1}", Keep(last=2, every=1000, best=1)),
        ("{best: 3}", Keep(last=1, best=3)),
    ],
)
def test_how_it_is_written_in_a_config(text: str, expected: Keep | None) -> None:
    config = configs.parse(SMALL, source="x", overrides=[f"training.checkpoint.keep={text}"]).config
    assert config.training.checkpoint.keep == expected
    assert configs.parse(configs.dump(config), source="again").config == config


def test_a_number_may_be_replaced_by_rules_and_wrong_ones_are_named() -> None:
    for text, wrong in itertools.product(("0", "true", "x", "{last: 0}", "{first: 1}"), ("training.checkpoint.keep",)):
        with pytest.raises(ConfigError, match=wrong):
            configs.parse(SMALL, source="x", overrides=[f"training.checkpoint.keep={text}"])


def test_async_is_a_key_like_any_other() -> None:
    config = configs.parse(SMALL, source="x", overrides=["training.checkpoint.async=false"]).config
    assert config.training.checkpoint.async_ is False
    dumped = configs.dump(config)
    assert "async: false" in dumped and "async_" not in dumped
    assert configs.parse(dumped, source="again").config == config
    with pytest.raises(ConfigError, match=r"did you mean training\.checkpoint\.async"):
        configs.parse(SMALL, source="x", overrides=["training.checkpoint.asinc=false"])
    with pytest.raises(ConfigError, match=r"training\.checkpoint\.async "):
        configs.parse(SMALL, source="x", overrides=["training.checkpoint.async=7"])
