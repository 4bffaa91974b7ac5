"""A run config that begins from checkpoints of other runs, and one that is made of another's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shardline.components.common import config as configs
from shardline.components.common.config import RunConfig, absolute, local_paths, refuse_relative
from shardline.components.common.config.derive import derive
from shardline.components.common.config.identity import (
    changes,
    check_identity,
    check_resume,
    differing,
    identity_hash,
    identity_of,
)
from shardline.components.common.errors import ConfigError, UserError

BASE = """\
version: 1
run: child
storage: /data
corpus: /texts
training: {steps: 20, global_batch: 8, microbatch: 2, sequence: 64}
"""
ONE = "training.start={run: /data/runs/base, step: 10}"
TWO = "training.start=[{run: a, step: 10}, {run: b, step: 12, weight: 3, position: true}]"


def load(*overrides: str) -> RunConfig:
    return configs.parse(BASE, source="run.yaml", overrides=overrides, ignore_environment=True).config


def test_one_parent_is_a_list_of_one() -> None:
    config = load(ONE)
    (parent,) = config.training.start
    assert (parent.run, parent.step, parent.weight, config.training.first_step) == ("/data/runs/base", 10, 1.0, 10)
    assert (
        load(ONE.replace("{", "[{").replace("}", "}]"))
        == config
        == configs.parse(configs.dump(config), source="x", ignore_environment=True).config
    )
    assert load().training.first_step == 0 and load(TWO).training.first_step == 12


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ((ONE, "training.steps=9"), "training.steps = 9: must be at least 10"),
        (("training.start={run: a}",), "training.start.0.step: is missing"),
        (("training.start={run: a, step: 0}",), "greater than or equal to 1"),
        (("training.start={run: a, step: 2, weight: 0}",), "greater than 0"),
        (("training.start={run: a, step: 2, wait: 1}",), "training.start.0.wait: unknown key"),
        (("training.start={run: a, step: 2, fingerprint: x}",), "training.start.0.fingerprint"),
        (("training.start=[{run: a, step: 2}, {run: b, step: 3}]",), "the checkpoints are of steps 2, 3"),
        (
            ("training.start=[{run: a, step: 2, position: true}, {run: b, step: 2, position: true}]",),
            "training.start.1.position = true: only one of them",
        ),
        ((ONE, "model.url=/m", "tokenizer.url=/m/tokenizer.json"), "can't stand beside model.url"),
    ],
)
def test_what_makes_no_sense_is_said(overrides: tuple[str, ...], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(*overrides)
    assert problem in str(caught.value)


def test_what_a_run_began_from_is_part_of_what_it_is() -> None:
    assert identity_hash(load()) != identity_hash(load(ONE)) != identity_hash(load(TWO))
    with pytest.raises(ConfigError, match=r"training\.start = \[\]: this run began with .*/data/runs/base"):
        check_resume(load(ONE), load())
    # What was written before there was this key goes on.
    older = {path: value for path, value in identity_of(load()).items() if path != "training.start"}
    check_identity(load(), older, hash="of then", where="/x")
    with pytest.raises(UserError, match=r"training\.start is .* there and \[\] here"):
        check_identity(load(), identity_of(load(ONE)), hash=identity_hash(load(ONE)), where="/x")


def test_the_keys_that_differ_are_told_with_both_values() -> None:
    before, now = load(), load("training.optimizer.lr=0.1", "training.steps=30", "training.layout.pp=2", "model.dim=64")
    assert changes(before, now) == {
        "model.dim": {"before": None, "now": 64},
        "training.steps": {"before": 20, "now": 30},
        "training.optimizer.lr": {"before": 3e-4, "now": 0.1},
    }
    stages = changes(before, load("training.stages=[{at: 3, global_batch: 4}]"))
    assert stages["training.stages"]["now"][0]["at"] == 3
    differ = differing(now, identity_of(before), but=lambda path: path.startswith("training."))
    assert differ == ["model.dim is null there and 64 here"]


def test_parents_are_paths_or_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = load("training.start=[{run: data/runs/a, step: 2}, {run: b, step: 2}, {run: s3://x/c, step: 2}]")
    assert local_paths(config)["training.start.0.run"] == "data/runs/a"
    assert [parent.run for parent in absolute(config).training.start] == [
        os.path.join(tmp_path, "data/runs/a"),
        "b",
        "s3://x/c",
    ]
    loaded = configs.parse(BASE, source="run.yaml", overrides=["training.start={run: ./a, step: 2}"])
    with pytest.raises(ConfigError, match=r"training\.start\.0\.run = "):
        refuse_relative(loaded)


def test_a_config_is_made_of_another(tmp_path: Path) -> None:
    overlay = tmp_path / "changes.yaml"
    overlay.write_text("training: {optimizer: {lr: 0.5}, layout: {pp: 2}}\nmonitoring:\n  log_every: 7\n")
    base = load("training.optimizer.clip=9")
    made = derive(base, source="the base", overlay=str(overlay), overrides=["training.optimizer.eps=1e-6"])
    optimizer = made.config.training.optimizer
    assert (optimizer.lr, optimizer.clip, optimizer.eps) == (0.5, 9, 1e-6)
    assert (made.config.training.layout.pp, made.config.monitoring.log_every) == (2, 7)
    assert made.sources["monitoring.log_every"] == f"{overlay}:3" and made.sources["training.optimizer.eps"] == "--set"
    assert derive(base, source="the base").config == base
    overlay.write_text("training:\n  steps: many\n")
    with pytest.raises(ConfigError, match=r"changes\.yaml:2: training\.steps = \"many\""):
        derive(base, source="the base", overlay=str(overlay))


def test_the_rules_hold_for_what_is_made_of_a_config() -> None:
    def shorter(config: RunConfig) -> RunConfig:
        return config.model_copy(update={"training": config.training.model_copy(update={"steps": 3})})

    with pytest.raises(ConfigError, match=r"^the base: training\.steps = 3: must be at least 10"):
        derive(load(ONE), source="the base", settle=shorter)
