"""`shardline checkpoint` as a user calls it, on a run that was trained."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

from shardline.components.common.owner import hold
from shardline.components.common.runfolder import read_config
from shardline.components.common.storage import Storage
from shardline.components.common.streams import read_all
from shardline.components.training.checkpoint import catalog
from shardline.components.training.checkpoint.whole import load_model
from tests.commands import shardline, write

TRAINED = ("--set", "training.steps=6", "--set", "training.checkpoint.every=2")
RUN = "data/runs/small"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("trained")
    write(where)
    for command in ("shard", "train"):
        done = shardline(command, "config.yaml", *TRAINED, cwd=where)
        assert done.returncode == 0, done.stderr
    return where


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    """A copy of the run to do things to, with its data set."""
    shutil.copytree(trained, tmp_path / "copy", symlinks=True)
    config = tmp_path / "copy" / RUN / "config.yaml"
    config.write_text(config.read_text().replace(str(trained), str(tmp_path / "copy")))
    return tmp_path / "copy"


def told(*arguments: str, cwd: Path, code: int = 0) -> Any:
    """What `shardline checkpoint ARGUMENTS --json` prints."""
    done = shardline("checkpoint", *arguments, "--json", cwd=cwd)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def data_file(folder: Path, step: int) -> Path:
    (path,) = (folder / RUN / catalog.folder_of(step)).glob("*.safetensors")
    return path


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


def test_list_is_of_all_by_folder_and_by_name(trained: Path) -> None:
    found = told("list", RUN, cwd=trained)
    assert [each["step"] for each in found] == [6, 4, 2]
    assert all(each["counts"] and not each["pinned"] and each["loss"] > 0 and each["time"] for each in found)
    assert told("list", "small", "--root", "data", cwd=trained) == found
    shown = shardline("checkpoint", "list", RUN, cwd=trained).stdout.splitlines()
    assert [line.split("  ")[0] for line in shown] == ["step 6", "step 4", "step 2"]


def test_info_tells_what_is_in_it(trained: Path) -> None:
    found = told("info", RUN, "--step", "4", cwd=trained)
    config = read_config(Storage(str(trained / RUN)))
    assert (found["step"], found["position"], found["updates"]) == (4, 16 * config.training.sequence, 4)
    assert found["identity_keys"]["training.global_batch"] == config.training.global_batch
    shape = config.model.shape(512)
    assert found["tensors"]["model.embedding.weight"] == {
        "dtype": "float32",
        "shape": [512, shape.dim],
        "bytes": 4 * 512 * shape.dim,
    }
    # Parameters and two moments of each.
    assert len(found["tensors"]) == 3 * sum(name.startswith("model.") for name in found["tensors"])
    shown = shardline("checkpoint", "info", RUN, cwd=trained).stdout
    assert "step 6" in shown and "model.layers.0.attention.query.weight" in shown and "saved under" in shown
    missing = shardline("checkpoint", "info", RUN, "--step", "5", cwd=trained)
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "no checkpoint of step 5; there are those of 6, 4, 2" in missing.stderr


def test_verify_names_every_file_that_is_not_as_it_was_written(folder: Path) -> None:
    assert told("verify", RUN, cwd=folder) == {"steps": [6, 4, 2], "whole": True, "problems": []}
    flip(data_file(folder, 6))
    data_file(folder, 2).unlink()
    problems = told("verify", RUN, cwd=folder, code=5)["problems"]
    assert len(problems) == 2
    assert str(data_file(folder, 6).relative_to(folder)) in problems[0] and "hash" in problems[0]
    assert catalog.folder_of(2) in problems[1] and "missing" in problems[1]
    assert told("verify", RUN, "--step", "4", cwd=folder)["whole"]
    (folder / RUN / catalog.folder_of(4) / "commit.json").write_text("{")
    shown = shardline("checkpoint", "verify", RUN, cwd=folder)
    assert shown.returncode == 5 and shown.stdout == ""
    assert f"{catalog.folder_of(4)}/commit.json: is not a commit record" in shown.stderr
    assert "Traceback" not in shown.stderr


def test_convert_makes_what_other_tools_read(trained: Path, tmp_path: Path) -> None:
    run = Storage(str(trained / RUN))
    record = next(each for each in catalog.committed(run) if each.step == 4)
    expected = load_model(run, record, read_config(run).model.shape(512)).state_dict()
    one = tmp_path / "one.safetensors"
    made = told("convert", RUN, str(one), "--step", "4", cwd=trained)
    assert (made["format"], made["tensors"]) == ("safetensors", len(expected))
    found = load_file(one)
    assert set(found) == set(expected)
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    made = told("convert", RUN, str(tmp_path / "hf"), "--step", "4", cwd=trained)
    assert made["format"] == "huggingface"
    parts = told("convert", RUN, str(tmp_path / "parts"), "--step", "4", "--max-shard-size", "500KiB", cwd=trained)
    assert parts["bytes"] > made["bytes"] and len(list((tmp_path / "parts").glob("*.safetensors"))) > 2
    wrong = shardline("checkpoint", "convert", RUN, str(tmp_path / "no"), "--max-shard-size", "big", cwd=trained)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "--max-shard-size: 'big' should be a size such as 64MiB" in wrong.stderr
    model = LlamaForCausalLM.from_pretrained(tmp_path / "hf")
    assert torch.equal(model.get_input_embeddings().weight, expected["embedding.weight"])
    for target in (one, tmp_path / "hf"):
        again = shardline("checkpoint", "convert", RUN, str(target), cwd=trained)
        assert (again.returncode, again.stdout) == (2, "")
        assert f"{target}: something is there already" in again.stderr


def test_convert_refuses_what_is_damaged_and_runs_nothing(folder: Path, tmp_path: Path) -> None:
    class Malice:
        def __reduce__(self) -> tuple[Any, ...]:
            return (os.mkdir, (str(tmp_path / "it-ran"),))

    (tokenizer,) = (folder / "data" / "datasets").glob("*/tokenizer.json")
    for path in (tokenizer, data_file(folder, 6)):
        before = path.read_bytes()
        path.write_bytes(pickle.dumps(Malice()))
        done = shardline("checkpoint", "convert", RUN, str(tmp_path / "hf"), cwd=folder)
        assert (done.returncode, done.stdout) == (5, ""), done.stderr
        assert str(path.relative_to(folder)) in done.stderr and "Traceback" not in done.stderr
        path.write_bytes(before)
    assert not (tmp_path / "it-ran").exists() and not (tmp_path / "hf").exists()


def test_prune_removes_what_no_rule_keeps_and_says_so_first(folder: Path) -> None:
    left = folder / RUN / catalog.folder_of(5)
    left.mkdir()
    (left / "g000001-00000.safetensors").write_bytes(b"half")
    told("pin", RUN, "2", cwd=folder)
    would = told("prune", RUN, "--last", "1", "--dry-run", cwd=folder)
    assert [(each["step"], each["folder"]) for each in would["removed"]] == [
        (4, catalog.folder_of(4)),
        (None, catalog.folder_of(5)),
    ]
    assert left.exists() and len(told("list", RUN, cwd=folder)) == 4
    assert told("prune", RUN, "--last", "1", cwd=folder) == {**would, "dry_run": False}
    assert [(each["step"], each["pinned"]) for each in told("list", RUN, cwd=folder)] == [(6, False), (2, True)]
    assert not left.exists()
    (event,) = [each for each in read_all(Storage(str(folder / RUN)).at("events")) if each["name"].endswith("pruned")]
    assert event["data"] == {"step": 4} and "the last 1" in event["reason"]
    told("pin", RUN, "2", "--remove", cwd=folder)
    assert len(told("prune", RUN, "--every", "6", cwd=folder)["removed"]) == 1


def test_prune_keeps_the_newest_sound_one(folder: Path) -> None:
    flip(data_file(folder, 6))
    told("prune", RUN, "--last", "1", cwd=folder)
    assert [each["step"] for each in told("list", RUN, cwd=folder)] == [6, 4]


def test_prune_needs_rules_and_leaves_a_run_at_work_alone(folder: Path) -> None:
    without = shardline("checkpoint", "prune", RUN, cwd=folder)
    assert without.returncode == 2 and "--last, --every or --best" in without.stderr
    with hold(Storage(str(folder / RUN))):
        busy = shardline("checkpoint", "prune", RUN, "--last", "1", cwd=folder)
    assert busy.returncode == 2 and "is being written by process" in busy.stderr
    assert len(told("list", RUN, cwd=folder)) == 3


def test_a_run_that_is_none_and_one_without_checkpoints(folder: Path) -> None:
    for command in ("list", "info", "verify"):
        done = shardline("checkpoint", command, "nowhere/at-all", cwd=folder)
        assert (done.returncode, done.stdout) == (2, "") and "no run is here" in done.stderr
    shutil.rmtree(folder / RUN / "checkpoints")
    assert told("list", RUN, cwd=folder) == []
    for command in ("info", "verify"):
        done = shardline("checkpoint", command, RUN, cwd=folder)
        assert (done.returncode, done.stdout) == (2, "") and "has no checkpoint yet" in done.stderr
