"""`shardline fork` and `shardline merge` as a user calls them, on runs that were trained."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import yaml

from shardline.components.common.owner import hold
from shardline.components.common.runfolder import read_config
from shardline.components.common.storage import Storage
from shardline.components.common.streams import by_step, read_all
from shardline.components.training.checkpoint import catalog
from shardline.components.training.checkpoint.catalog import CheckpointRecord
from tests.commands import environment, shardline, write
from tests.unit.training.checkpoint_support import stored

RUNS = "data/runs"
OFTEN = ("--set", "training.steps=6", "--set", "training.checkpoint.every=2")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 6 steps, `small`; and one from its step 2 at another learning rate, `other`."""
    where = tmp_path_factory.mktemp("trained")
    write(where)
    for command in (("shard", "config.yaml", *OFTEN), ("train", "config.yaml", *OFTEN)):
        succeeds(*command, cwd=where)
    told("fork", f"{RUNS}/small", "other", "--step", "2", "--set", "training.optimizer.lr=0.003", cwd=where)
    succeeds("train", f"{RUNS}/other/config.yaml", cwd=where)
    return where


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    """A copy of all of it to do things to."""
    shutil.copytree(trained, tmp_path / "copy", symlinks=True)
    for config in (tmp_path / "copy").glob(f"{RUNS}/*/config.yaml"):
        config.write_text(config.read_text().replace(str(trained), str(tmp_path / "copy")))
    return tmp_path / "copy"


def succeeds(*arguments: str, cwd: Path, **extra: str) -> str:
    done = shardline(*arguments, cwd=cwd, **extra)
    assert done.returncode == 0, done.stderr
    return done.stdout


def told(*arguments: str, cwd: Path) -> Any:
    return json.loads(succeeds(*arguments, "--json", cwd=cwd))


def refused(*arguments: str, cwd: Path, code: int = 2) -> str:
    done = shardline(*arguments, cwd=cwd)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def storage(folder: Path, run: str) -> Storage:
    return Storage(str(folder / RUNS / run))


def record_of(folder: Path, run: str, step: int) -> CheckpointRecord:
    return next(each for each in catalog.committed(storage(folder, run)) if each.step == step)


def tensors(folder: Path, run: str, step: int) -> dict[str, npt.NDArray[Any]]:
    found = stored(storage(folder, run), record_of(folder, run, step))
    return {name: tensor.numpy() for name, tensor in found.items()}


def losses(folder: Path, run: str) -> dict[int, float]:
    records = by_step(read_all(storage(folder, run).at("metrics")))
    return {int(each["data"]["step"]): float(each["data"]["loss"]) for each in records}


def samples(folder: Path, run: str) -> dict[int, list[int]]:
    """By step, in the order of microbatches."""
    found: dict[int, list[int]] = {}
    used = [each["data"] for each in read_all(storage(folder, run).at("samples"))]
    for each in sorted(used, key=lambda data: (data["step"], data["microbatch"])):
        found.setdefault(each["step"], []).extend(each["indices"])
    return found


def event(folder: Path, run: str, name: str) -> dict[str, Any]:
    (found,) = [each for each in read_all(storage(folder, run).at("events")) if each["name"] == name]
    return found


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def flip(folder: Path, run: str, step: int) -> Path:
    (path,) = (folder / RUNS / run / catalog.folder_of(step)).glob("*.safetensors")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    return path


# fork


def test_a_fork_is_the_checkpoint_and_its_parent_is_left_alone(folder: Path) -> None:
    before = contents(folder / RUNS / "small")
    with hold(storage(folder, "small")):  # as if it were training
        held = contents(folder / RUNS / "small")
        made = told("fork", f"{RUNS}/small", "forked", "--step", "4", cwd=folder)
        assert contents(folder / RUNS / "small") == held
    assert (made["step"], made["position"], made["changes"], made["made"]) == (4, 4 * 4 * 64, {}, True)
    parent, child = record_of(folder, "small", 4), record_of(folder, "forked", 4)
    assert (child.files, child.state, child.step) == (parent.files, parent.state, 4)
    assert catalog.damage(storage(folder, "forked"), child) is None
    assert not set(contents(folder / RUNS / "small")) ^ set(before)
    found = event(folder, "forked", "run.forked")
    assert found["data"]["parents"] == made["parents"] and "step 4 of" in found["reason"]
    start = yaml.safe_load((folder / RUNS / "forked" / "config.yaml").read_text())["training"]["start"]
    assert [(each["run"], each["step"]) for each in start] == [(str(folder / RUNS / "small"), 4)]
    # Called again it changes nothing, and goes its own way when it is trained.
    at_rest = contents(folder / RUNS / "forked")
    assert told("fork", f"{RUNS}/small", "forked", "--step", "4", cwd=folder) == {**made, "made": False}
    assert contents(folder / RUNS / "forked") == at_rest
    # What the parent loses is no loss to it.
    shutil.rmtree(folder / RUNS / "small")
    succeeds("train", f"{RUNS}/forked/config.yaml", cwd=folder)
    assert sorted(losses(folder, "forked")) == [4, 5]


def test_a_fork_that_changes_nothing_goes_on_as_its_parent_did(folder: Path) -> None:
    told("fork", "small", "same", "--step", "2", "--root", "data", cwd=folder)
    succeeds("train", f"{RUNS}/same/config.yaml", cwd=folder)
    expected, found = losses(folder, "small"), losses(folder, "same")
    assert sorted(found) == [2, 3, 4, 5] and all(found[step] == expected[step] for step in found)
    assert samples(folder, "same") == {step: samples(folder, "small")[step] for step in found}
    ours, theirs = tensors(folder, "same", 6), tensors(folder, "small", 6)
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)


def test_what_is_changed_is_told_with_both_values(trained: Path) -> None:
    found = event(trained, "other", "run.forked")
    assert found["data"]["changes"] == {"training.optimizer.lr": {"before": 3e-4, "now": 0.003}}
    assert "training.optimizer.lr" in found["reason"]
    assert read_config(storage(trained, "other")).training.optimizer.lr == 0.003
    mine, its = losses(trained, "other"), losses(trained, "small")
    assert mine[2] == its[2] and mine[5] != its[5]  # the loss of a step is that before its update


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("model.dim=64", "model.dim is null there and 64 here"),
        ("model.layers=2", "model.layers is null there and 2 here"),
        ("tokenizer.vocab=600", "tokenizer.vocab is 512 there and 600 here"),
        ("tokenizer.url=/some/tokenizer.json", 'tokenizer.url is null there and "/some/tokenizer.json" here'),
        ("training.seed=1", "training.seed is 0 there and 1 here"),
        ("training.window=8", "training.window is 64 there and 8 here"),
        ("sharding.row_group=8", "sharding.row_group is 16 there and 8 here"),
        ("corpus=stdlib:json", 'corpus.urls is ["stdlib:asyncio"] there and ["stdlib:json"] here'),
        ("training.sequence=128", "the block is of 64 tokens there and of 128 here"),
        ("training.stages=[{at: 2, global_batch: 8}]", "stages"),
        ("training.skip=[{at: 1, batches: 2}]", "skips"),
        ("training.steps=3", "must be at least 4, the steps that training.start has done"),
        ("training.optimizer.lr=-1", "--set: training.optimizer.lr = -1"),
    ],
)
def test_what_may_not_change_is_refused_and_leaves_nothing_behind(trained: Path, change: str, problem: str) -> None:
    shown = refused("fork", f"{RUNS}/small", "bad", "--step", "4", "--set", change, cwd=trained)
    assert problem in shown
    assert not (trained / RUNS / "bad").exists()


def test_what_is_not_there_or_in_the_way_is_said(trained: Path) -> None:
    assert "no checkpoint of step 5; there are those of 6, 4, 2" in refused(
        "fork", f"{RUNS}/small", "bad", "--step", "5", cwd=trained
    )
    before = contents(trained / RUNS / "other")
    assert "another run is here already; give the new one another name" in refused(
        "fork", f"{RUNS}/other", "small", cwd=trained
    )
    changed = ("fork", f"{RUNS}/small", "other", "--step", "2", "--set", "training.optimizer.lr=0.1")
    other = ("fork", f"{RUNS}/small", "third", "--step", "2", "--set", "training.optimizer.name=mine:Lion")
    assert 'training.optimizer.name is "adamw" there and "mine:Lion" here' in refused(*other, cwd=trained)
    assert "training.optimizer.lr = 0.1: this run began with 0.003" in refused(*changed, cwd=trained)
    assert "training.start" in refused("fork", f"{RUNS}/small", "other", "--step", "4", cwd=trained)
    assert contents(trained / RUNS / "other") == before
    assert "run = " in refused("fork", f"{RUNS}/small", "No Name", cwd=trained)


def test_the_keys_of_a_file_lie_over_the_parents_and_options_over_both(folder: Path) -> None:
    write(folder, "run: another\ntraining:\n  steps: 9\n  optimizer: {lr: 0.01, clip: 2.0}\n", "changes.yaml")
    told(
        *("fork", f"{RUNS}/small", "filed", "--config", "changes.yaml", "--set", "training.optimizer.clip=3"),
        cwd=folder,
    )
    config = read_config(storage(folder, "filed"))
    assert (config.run, config.training.steps, config.training.optimizer.lr) == ("filed", 9, 0.01)
    assert (config.training.optimizer.clip, config.training.optimizer.betas) == (3, [0.9, 0.95])
    # To train longer must not bend the curve that it is on.
    assert config.training.schedule.decay_steps == read_config(storage(folder, "small")).training.schedule.decay_steps
    write(folder, "training:\n  optimizer:\n    rate: 3\n", "changes.yaml")
    shown = refused("fork", f"{RUNS}/small", "bad", "--config", "changes.yaml", cwd=folder)
    assert "changes.yaml:3: training.optimizer.rate" in shown and "unknown key" in shown
    assert "not found" in refused("fork", f"{RUNS}/small", "bad", "--config", "nowhere.yaml", cwd=folder)


def test_a_batch_of_another_size_holds_from_the_first_new_step_on(folder: Path) -> None:
    made = told("fork", f"{RUNS}/small", "wide", "--step", "4", "--set", "training.global_batch=8", cwd=folder)
    (stages,) = made["changes"]["training.stages"]["now"]
    assert (stages["at"], stages["global_batch"]) == (4, 8)
    assert read_config(storage(folder, "wide")).training.global_batch == 4
    succeeds("train", f"{RUNS}/wide/config.yaml", cwd=folder)
    parents = samples(folder, "small")
    assert samples(folder, "wide")[4] == parents[4] + parents[5]
    assert event(folder, "wide", "policy.changed")["data"]["step"] == 4


def test_a_damaged_checkpoint_is_named_and_another_may_be_taken(folder: Path) -> None:
    path = flip(folder, "small", 6)
    shown = refused("fork", f"{RUNS}/small", "new", cwd=folder, code=5)
    assert f"{path}: is not what was written" in shown
    assert not catalog.committed(storage(folder, "new"))
    assert "is not what was written" in refused("train", f"{RUNS}/new/config.yaml", cwd=folder, code=5)
    made = told("fork", f"{RUNS}/small", "new", "--step", "4", cwd=folder)
    assert (made["step"], made["made"]) == (4, True)
    assert [each.step for each in catalog.committed(storage(folder, "new"))] == [4]
    assert catalog.unfinished(storage(folder, "new"), catalog.committed(storage(folder, "new"))) == []


KILLED = """
import os, signal, sys
from shardline.components.common.storage import Storage
from shardline.components.training.start import making

def stop(done, total):
    if done >= {share} * total:
        os.kill(os.getpid(), signal.SIGKILL)

parents = [making.Named(run=Storage(url)) for url in sys.argv[2:]]
making.make(making.config_from(parents, name=sys.argv[1]), command="fork", on_part=stop)
"""


def killed(name: str, *runs: Path, share: float, cwd: Path) -> None:
    code = KILLED.format(share=share)
    done = subprocess.run([sys.executable, "-c", code, name, *map(str, runs)], cwd=cwd, env=environment())
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize("share", [0.0001, 1.0])
def test_a_fork_that_was_killed_does_not_count_and_is_made_by_the_same_command(folder: Path, share: float) -> None:
    killed("new", folder / RUNS / "small", share=share, cwd=folder)
    run = storage(folder, "new")
    assert catalog.committed(run) == []
    assert not any(each["counts"] for each in told("checkpoint", "list", run.url, cwd=folder))
    # The parent has gone on meanwhile: what was begun is finished.
    succeeds("train", f"{RUNS}/small/config.yaml", "--set", "training.steps=8", cwd=folder)
    made = told("fork", f"{RUNS}/small", "new", cwd=folder)
    assert (made["step"], made["made"]) == (6, True)
    assert record_of(folder, "new", 6).files == record_of(folder, "small", 6).files
    assert catalog.damage(run, record_of(folder, "new", 6)) is None


def test_a_fork_that_was_killed_is_finished_by_the_train_step_too(folder: Path) -> None:
    killed("new", folder / RUNS / "small", share=0.0001, cwd=folder)
    succeeds("train", f"{RUNS}/new/config.yaml", "--set", "training.steps=7", cwd=folder)
    assert [each.step for each in catalog.committed(storage(folder, "new"))] == [7, 6]
    assert sorted(losses(folder, "new")) == [6]


# the key that both write


def test_the_config_alone_gives_the_same_run_in_another_storage(trained: Path, tmp_path: Path) -> None:
    config = f"{trained / RUNS / 'other'}/config.yaml"
    succeeds("run", config, "--root", str(tmp_path / "elsewhere"), cwd=tmp_path)
    found = by_step(read_all(Storage(str(tmp_path / "elsewhere/runs/other")).at("metrics")))
    assert {each["data"]["step"]: each["data"]["loss"] for each in found} == losses(trained, "other")
    report = (tmp_path / "elsewhere/runs/other/report.html").read_text()
    assert "step 2 of" in report or "training.start names" in report
    shown = succeeds("status", str(tmp_path / "elsewhere/runs/other"), cwd=tmp_path)
    assert "step 6 of 6" in shown


def test_a_config_may_name_a_run_of_its_storage(folder: Path) -> None:
    text = (folder / "config.yaml").read_text().replace("run: small", "run: by-hand")
    write(folder, text, "by-hand.yaml")
    begin = ("--set", "training.start={run: small, step: 4}", "--set", "training.schedule.decay_steps=6", *OFTEN)
    succeeds("shard", "by-hand.yaml", *begin, cwd=folder)
    succeeds("train", "by-hand.yaml", *begin, cwd=folder)
    expected, found = losses(folder, "small"), losses(folder, "by-hand")
    assert sorted(found) == [4, 5] and all(found[step] == expected[step] for step in found)
    assert event(folder, "by-hand", "run.forked")["data"]["changes"] == {}
    shown = refused("replay", f"{RUNS}/by-hand", "--step", "3", cwd=folder)
    assert "this run begins with optimizer step 4" in shown and "replay that one: small" in shown


def test_a_checkpoint_that_is_another_than_it_was_is_refused(folder: Path) -> None:
    config = folder / RUNS / "other" / "config.yaml"
    shutil.rmtree(folder / RUNS / "other" / "checkpoints")
    start = read_config(storage(folder, "other")).training.start
    was = str(start[0].fingerprint)
    config.write_text(config.read_text().replace(was, f"blake2b-{'0' * 32}"))
    shown = refused("train", str(config), cwd=folder)
    assert f"its fingerprint is {was}" in shown


def test_a_data_set_that_is_another_is_refused(folder: Path) -> None:
    texts = folder / "texts"
    texts.mkdir()
    for number in range(40):
        (texts / f"{number}.txt").write_text(f"A text of the number {number}. " * 20)
    text = (folder / "config.yaml").read_text().replace("stdlib:asyncio", "texts")
    write(folder, text.replace("run: small", "run: first"), "first.yaml")
    succeeds("shard", "first.yaml", cwd=folder)
    succeeds("train", "first.yaml", cwd=folder)
    (texts / "0.txt").write_text("A text that is another one. " * 20)
    write(folder, text.replace("run: small", "run: second"), "second.yaml")
    begin = ("--set", "training.start={run: first, step: 4}")
    succeeds("shard", "second.yaml", *begin, cwd=folder)
    assert "the data position would mean other samples" in refused("train", "second.yaml", *begin, cwd=folder)


# merge


def test_a_run_merged_with_itself_is_the_same_bit_by_bit(folder: Path) -> None:
    made = told("merge", "twice", "small@4", "small@4=2.5", "small@4", "--root", "data", cwd=folder)
    assert (made["step"], len(made["parents"])) == (4, 3)
    ours, theirs = tensors(folder, "twice", 4), tensors(folder, "small", 4)
    assert set(ours) == set(theirs)
    assert all(ours[name].tobytes() == theirs[name].tobytes() for name in theirs)
    state, parent = record_of(folder, "twice", 4).state, record_of(folder, "small", 4).state
    assert all(state[name] == parent[name] for name in ("position", "updates", "tokens", "policy"))


def test_a_mean_is_that_of_the_weights_and_of_the_moments(folder: Path) -> None:
    made = told("merge", "mean", f"{RUNS}/small=1", f"{RUNS}/other=3", cwd=folder)
    assert [(each["step"], each["weight"]) for each in made["parents"]] == [(6, 1), (6, 3)]
    one, other, mean = (tensors(folder, run, 6) for run in ("small", "other", "mean"))
    moved = 0
    for name in one:
        expected = 0.25 * one[name].astype(np.float64) + 0.75 * other[name].astype(np.float64)
        assert mean[name].dtype == one[name].dtype
        np.testing.assert_allclose(mean[name], expected, rtol=2e-7, atol=0)
        moved += not np.array_equal(one[name], other[name])
    # Parameters and both moments.
    assert moved == len(one) and {name.split(".")[-1] for name in one} >= {"exp_avg", "exp_avg_sq"}
    found = event(folder, "mean", "run.merged")["data"]
    assert (found["parents"], found["position_of"]) == (made["parents"], str(folder / RUNS / "small"))
    before = contents(folder / RUNS / "mean")
    assert not told("merge", "mean", f"{RUNS}/small=1", f"{RUNS}/other=3", cwd=folder)["made"]
    assert contents(folder / RUNS / "mean") == before
    succeeds("train", f"{RUNS}/mean/config.yaml", "--set", "training.steps=8", cwd=folder)
    assert sorted(losses(folder, "mean")) == [6, 7]


def test_checkpoints_that_are_not_as_far_need_a_word_on_whose_position_holds(folder: Path) -> None:
    inputs = (f"{RUNS}/small@4", f"{RUNS}/small@6", f"{RUNS}/other")
    shown = refused("merge", "late", *inputs, cwd=folder)
    assert "the checkpoints are of steps 4, 6" in shown
    assert "merged at several steps" in refused("merge", "late", *inputs, "--position-of", f"{RUNS}/small", cwd=folder)
    write(folder, "")
    made = told("merge", "late", *inputs, "--position-of", f"{RUNS}/other", cwd=folder)
    assert (made["step"], made["position"]) == (6, 6 * 4 * 64)
    assert [each.position for each in read_config(storage(folder, "late")).training.start] == [False, False, True]
    assert read_config(storage(folder, "late")).training.optimizer.lr == 0.003
    assert event(folder, "late", "run.merged")["data"]["position_of"] == str(folder / RUNS / "other")


def test_other_samples_of_the_same_number_are_not_the_same_position(folder: Path) -> None:
    told("fork", f"{RUNS}/small", "past", "--step", "2", "--set", "training.skip=[{at: 3, batches: 1}]", cwd=folder)
    succeeds("train", f"{RUNS}/past/config.yaml", cwd=folder)
    shown = refused("merge", "bad", f"{RUNS}/small", f"{RUNS}/past", cwd=folder)
    assert "is not as far in the data as the others: position is" in shown and "--position-of RUN" in shown
    told("merge", "good", f"{RUNS}/small", f"{RUNS}/past", "--position-of", f"{RUNS}/past", cwd=folder)
    assert [skip.at for skip in read_config(storage(folder, "good")).training.skip] == [3]


def test_other_models_are_refused_by_the_first_difference(folder: Path) -> None:
    text = (folder / "config.yaml").read_text().replace("run: small", "run: thin")
    write(folder, text, "thin.yaml")
    thin = ("--set", "model.dim=64", "--set", "training.steps=6")
    succeeds("shard", "thin.yaml", *thin, cwd=folder)
    succeeds("train", "thin.yaml", *thin, cwd=folder)
    shown = refused("merge", "bad", f"{RUNS}/small", f"{RUNS}/thin", cwd=folder)
    assert "runs/thin/checkpoints" in shown and "model.dim is 64 there and null here" in shown
    assert not (folder / RUNS / "bad").exists()
    # Of the same config, and of another type: a fork may change its precision.
    told("fork", f"{RUNS}/small", "wide", "--step", "4", "--set", "training.precision=fp64", cwd=folder)
    succeeds("train", f"{RUNS}/wide/config.yaml", cwd=folder)
    shown = refused("merge", "bad", f"{RUNS}/small", f"{RUNS}/wide", cwd=folder)
    assert "model.embedding.weight is 512 x 128 of float64 there, and 512 x 128 of float32 in" in shown


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("small",), "a merge is of two checkpoints or more"),
        (("small", "other=0"), "the weight 0 is not a number above 0"),
        (("small", "other=-1"), "the weight -1 is not a number above 0"),
        (("small", "other=1e"), "the weight 1e is not a number above 0"),
        (("small", "other@5"), "no checkpoint of step 5"),
        (("small", "nobody"), "no run is here"),
        (("small", "other", "--position-of", "other@4"), "is none of the runs to merge"),
        (("small", "other", "--set", "training.seed=3"), "training.seed is 0 there and 3 here"),
    ],
)
def test_a_mistake_is_said(trained: Path, arguments: tuple[str, ...], problem: str) -> None:
    assert problem in refused("merge", "bad", *arguments, "--root", "data", cwd=trained)
    assert not (trained / RUNS / "bad").exists()


def test_a_damaged_input_is_named(folder: Path) -> None:
    path = flip(folder, "other", 6)
    shown = refused("merge", "new", f"{RUNS}/small", f"{RUNS}/other", cwd=folder, code=5)
    assert f"{path}: does not have the hash it was written with" in shown
    assert not catalog.committed(storage(folder, "new"))


def test_a_merge_that_was_killed_is_made_by_the_same_command(folder: Path) -> None:
    runs = (folder / RUNS / "small", folder / RUNS / "other")
    killed("new", *runs, share=0.5, cwd=folder)
    assert catalog.committed(storage(folder, "new")) == []
    told("merge", "new", *map(str, runs), cwd=folder)
    told("merge", "undisturbed", *map(str, runs), cwd=folder)
    ours, theirs = tensors(folder, "new", 6), tensors(folder, "undisturbed", 6)
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)
    names = storage(folder, "new").names(catalog.folder_of(6))
    assert set(names) == {*record_of(folder, "new", 6).files, catalog.COMMIT_FILE}
