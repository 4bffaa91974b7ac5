"""`shardline nodes`: what is set aside stays so, for every run of a storage root, until a person takes it in again."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from shardline.components.common.kubernetes.avoidance import terms_of
from shardline.components.common.storage import Storage
from shardline.components.elasticity.budget.nodes import BadNodes
from tests.commands import SMALL, shardline, write
from tests.manifests import pods_of


def test_a_node_is_set_aside_listed_and_taken_in_again(tmp_path: Path) -> None:
    options = ("--root", "data")
    empty = shardline("nodes", "list", *options, cwd=tmp_path)
    assert (empty.returncode, empty.stdout, empty.stderr) == (0, "", "no node is set aside\n")
    made = shardline("nodes", "set-aside", "gpu-7", "--reason", "ECC errors", *options, cwd=tmp_path)
    assert (made.returncode, made.stdout, made.stderr) == (0, "", "node gpu-7 is set aside\n")
    again = shardline("nodes", "set-aside", "gpu-7", "--reason", "smoke", "--json", *options, cwd=tmp_path)
    assert json.loads(again.stdout) == {"name": "gpu-7", "set_aside": False}
    shown = shardline("nodes", "list", cwd=tmp_path, SHARDLINE_ROOT="data")
    assert shown.stdout.startswith("gpu-7  since 2") and shown.stdout.endswith(": ECC errors\n")
    (found,) = json.loads(shardline("nodes", "list", "--json", *options, cwd=tmp_path).stdout)
    assert (found["name"], found["reason"], found["run"], found["entries"]) == ("gpu-7", "ECC errors", "", [])
    cleared = shardline("nodes", "clear", "gpu-7", *options, cwd=tmp_path)
    assert (cleared.returncode, cleared.stderr) == (0, "node gpu-7 is taken in again\n")
    assert json.loads(shardline("nodes", "list", "--json", *options, cwd=tmp_path).stdout) == []
    nothing = shardline("nodes", "clear", "gpu-7", "--json", *options, cwd=tmp_path)
    assert json.loads(nothing.stdout) == {"name": "gpu-7", "cleared": False}


def test_mistakes_get_one_message(tmp_path: Path) -> None:
    nowhere = shardline("nodes", "list", cwd=tmp_path)
    assert (nowhere.returncode, nowhere.stdout) == (2, "")
    assert nowhere.stderr.startswith("error: --root: is needed") and "SHARDLINE_ROOT" in nowhere.stderr
    strange = shardline("nodes", "set-aside", "../runs", "--reason", "so", "--root", "data", cwd=tmp_path)
    assert strange.returncode == 2 and "error: '../runs': is no name of a node" in strange.stderr
    (tmp_path / "data" / "nodes").mkdir(parents=True)
    (tmp_path / "data" / "nodes" / "n1.json").write_text("{")
    damaged = shardline("nodes", "list", "--root", "data", cwd=tmp_path)
    assert damaged.returncode == 5 and "nodes/n1.json: is not what was written" in damaged.stderr


def test_render_leaves_out_what_is_named_and_what_is_set_aside(tmp_path: Path) -> None:
    path = write(tmp_path, SMALL + "kubernetes: {image: registry.example/shardline:1}\n")
    storage = str(tmp_path / "shared")
    BadNodes(Storage(storage)).set_aside("gpu-7", reason="ECC errors")
    options = ("--root", storage, "--set", f"corpus={tmp_path}", "--only", "train")
    done = shardline("render", str(path), *options, "--leave-out", "gpu-1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    (job,) = [each for each in yaml.safe_load_all(done.stdout) if each["kind"] == "PyTorchJob"]
    (pod,) = pods_of(job)
    (term,) = terms_of(pod)
    assert term["matchExpressions"][-1]["values"] == ["gpu-1", "gpu-7"]
    assert job["metadata"]["annotations"]["shardline.io/left-out"] == "gpu-7"
    strange = shardline("render", str(path), *options, "--leave-out", "a,b", cwd=tmp_path)
    assert strange.returncode == 2 and "'a,b': is no name of a node" in strange.stderr


def test_render_works_where_the_storage_root_is_out_of_reach(tmp_path: Path) -> None:
    path = write(tmp_path, SMALL + "kubernetes: {image: registry.example/shardline:1}\n")
    options = ("--root", "s3://bucket/root", "--set", "corpus=s3://bucket/texts")
    away = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
    done = shardline("render", str(path), *options, cwd=tmp_path, **away)
    assert done.returncode == 0 and "PyTorchJob" in done.stdout
    assert "note: whether nodes are set aside is not known from here" in done.stderr
