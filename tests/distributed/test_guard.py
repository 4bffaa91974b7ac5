"""Steps that are not sound, in real training: left out, reported, or rolled back, the same under every layout."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from shardline.components.common.events import EventLog
from shardline.components.common.owner import hold
from shardline.components.common.runfolder import DATASET_FILE, adopt_config, run_storage
from shardline.components.common.storage import Storage
from shardline.components.common.streams import by_step, read_all
from shardline.components.common.workers import Job
from shardline.components.elasticity.budget.verdict import Limits
from shardline.components.elasticity.local import LocalAgent
from shardline.components.planning.layout import Layout
from shardline.components.sharding.decisions import decided
from shardline.components.sharding.order import Skip
from shardline.components.training.checkpoint import catalog
from tests.commands import shardline
from tests.distributed.runs import ONE, furthest, losses, make_config, prepare, samples, train

POISON = "tests.distributed.poison:train"
#: 16 samples a step: this one is of step 8, the first that there are enough losses before.
SAMPLE = 8 * 16 + 3
GUARD = ("training.guard.window=8", "training.checkpoint.every=4")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("guard")
    return folder, prepare(folder)


def go(root: tuple[Path, str], run: str, layout: Layout, *overrides: str, factor: float | None = None) -> Storage:
    folder, dataset = root
    config = make_config(folder, run=run, overrides=(*GUARD, *overrides))
    if factor is None:
        return train(config, layout, dataset=dataset)
    return train(config, layout, dataset=dataset, entry=POISON, poisoned=[SAMPLE], factor=factor)


def events(run: Storage, name: str) -> list[dict[str, Any]]:
    return [record["data"] for record in read_all(run.at("events")) if record["name"] == name]


def run_of(root: tuple[Path, str], name: str) -> Storage:
    return Storage(str(root[0] / "storage")).at(f"runs/{name}")


def test_a_spike_is_rolled_back_and_its_samples_are_passed_over(root: tuple[Path, str]) -> None:
    rule = "training.guard.spike=roll-back"
    with pytest.raises(AssertionError, match=r"RolledBack: .* steps 7 to 8 are passed over"):
        go(root, "spike", Layout(pp=2), rule, factor=50.0)
    run = run_of(root, "spike")
    assert decided(run) == [Skip(step=7, batches=2)]
    # The checkpoint of step 8 has learned from what is passed over; the one of step 4 has not.
    assert [record.step for record in catalog.committed(run)] == [4]
    (told,) = events(run, "training.rolled-back")
    assert told["step"] == 8 and told["loss"] > 20 and {each["step"] for each in told["documents"]} == {7, 8}
    assert all(each["file"].endswith(".txt") for each in told["documents"])

    go(root, "spike", Layout(dp_shard=2), rule, factor=50.0)
    right = go(root, "skipping", ONE, "training.skip=[{at: 7, batches: 2}]")
    assert samples(run) == samples(right)
    assert furthest(losses(run), losses(right)) < 1e-12


def test_a_roll_back_goes_no_further_than_a_checkpoint_reaches(root: tuple[Path, str]) -> None:
    rules = ("training.guard.spike=roll-back", "training.checkpoint.keep=1")
    with pytest.raises(AssertionError, match=r"RolledBack: .* steps 8 to 8 are passed over"):
        go(root, "kept-one", Layout(pp=2), *rules, factor=50.0)
    run = run_of(root, "kept-one")
    assert decided(run) == [Skip(step=8, batches=1)]
    assert [record.step for record in catalog.committed(run)] == [8]
    go(root, "kept-one", ONE, *rules, factor=50.0)
    right = go(root, "skipping-one", ONE, "training.skip=[{at: 8, batches: 1}]")
    assert samples(run) == samples(right)
    assert furthest(losses(run), losses(right)) < 1e-12


def test_a_run_that_may_roll_back_no_more_reports(root: tuple[Path, str]) -> None:
    rules = ("training.guard.spike=roll-back", "training.guard.roll_backs=1", "training.guard.pass_over=0")
    with pytest.raises(AssertionError, match="RolledBack"):
        go(root, "again", ONE, *rules, factor=50.0)
    folder, dataset = root
    config = make_config(folder, run="again", overrides=(*GUARD, *rules))
    # The samples that take the place of those passed over are no better.
    train(config, ONE, dataset=dataset, entry=POISON, poisoned=[SAMPLE + 16], factor=50.0)
    run = run_of(root, "again")
    assert decided(run) == [Skip(step=8, batches=1)]
    assert [told["step"] for told in events(run, "loss.spiked")] == [8] and len(losses(run)) == 10


def test_an_update_that_is_not_finite_is_left_out(root: tuple[Path, str]) -> None:
    one = go(root, "nan-one", ONE, factor=math.nan)
    two = go(root, "nan-two", Layout(pp=2), factor=math.nan)
    for run in (one, two):
        (told,) = events(run, "update.skipped")
        assert told["step"] == 8 and told["documents"]
        updated = [record["data"]["updated"] for record in by_step(read_all(run.at("metrics")))]
        assert updated == [True] * 8 + [False, True]
        newest = catalog.current(run)
        assert newest is not None and newest.state["updates"] == 9
    assert losses(one)[9] == pytest.approx(losses(two)[9], abs=1e-12)
    clean = losses(go(root, "clean", ONE))
    assert losses(one)[:8] == clean[:8] and losses(one)[9] != clean[9]


@pytest.mark.parametrize("rule", ["training.guard.not_finite=stop", "training.guard.most_skipped=1"])
def test_too_much_that_is_not_finite_ends_training(root: tuple[Path, str], rule: str) -> None:
    folder, dataset = root
    name = re.sub("[^a-z0-9]+", "-", rule)
    config = make_config(folder, run=name, overrides=(*GUARD, rule))
    poisoned = [16 * step for step in range(5, 10)]
    with pytest.raises(AssertionError, match=r"UserError: .*a loss of nan.*training\.optimizer\.lr"):
        train(config, Layout(pp=2), dataset=dataset, entry=POISON, poisoned=poisoned, factor=math.nan)


def test_roll_backs_do_not_use_up_the_restarts(root: tuple[Path, str]) -> None:
    folder, dataset = root
    rules = ("training.guard.spike=roll-back", "training.guard.pass_over=0")
    config = make_config(folder, run="agent", overrides=(*GUARD, *rules))
    run, layout = run_storage(config), Layout(pp=2)
    arguments = {"dataset": dataset, "layout": layout.to_json(), "device": "cpu", "factor": 50.0}
    poisoned = [SAMPLE, SAMPLE + 16]
    job = Job(name="train", entry=POISON, arguments=lambda *_: {**arguments, "poisoned": poisoned})
    with hold(run) as lease, EventLog(run, generation=0, writer="test") as log:
        adopt_config(run, config)
        run.write(DATASET_FILE, json.dumps({"key": dataset}).encode())
        limits = Limits(max_restarts=1, restart_window=60, restarts_in_window=1, set_aside_after=0)
        agent = LocalAgent(processes=2, limits=limits, timeout=60, grace=0)
        agent.run(job, run=run, lease=lease, events=log)
    assert decided(run) == [Skip(step=8, batches=1)] * 2
    assert len(events(run, "training.rolled-back")) == 2 and not events(run, "worker.lost")
    right = go(root, "skipping-two", ONE, "training.skip=[{at: 8, batches: 2}]")
    assert samples(run) == samples(right)
    assert furthest(losses(run), losses(right)) < 1e-12


@pytest.mark.parametrize("step", [7, 8])
def test_a_step_is_replayed_under_another_layout(root: tuple[Path, str], step: int) -> None:
    run = go(root, "replayed", Layout(pp=2))
    before = sorted(path for path in Path(run.local_path("")).rglob("*"))
    options = ["--set", "training.layout={dp_shard: 2}", "--set", "resources.processes=2", "--json"]
    done = shardline("replay", run.url, "--step", str(step), *options, cwd=root[0])
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["from_step"] == step // 4 * 4 and found["layout"]["dp_shard"] == 2 and found["verdict"] == "sound"
    for name in ("loss", "gradient_norm"):
        assert found[name] == pytest.approx(found["recorded"][name], abs=1e-12)
    squares = [facts["gradient_norm"] ** 2 for facts in found["parameters"].values()]
    assert math.sqrt(sum(squares)) == pytest.approx(found["gradient_norm"], rel=1e-9)
    assert [sample["block"] for sample in found["samples"]] == samples(run)[step]
    assert sorted(path for path in Path(run.local_path("")).rglob("*")) == before


def test_a_step_that_was_not_done_is_not_replayed(root: tuple[Path, str]) -> None:
    run = go(root, "replayed", Layout(pp=2))
    done = shardline("replay", run.url, "--step", "10", cwd=root[0])
    assert done.returncode == 2 and "has not done optimizer step 10" in done.stderr
