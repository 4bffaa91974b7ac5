"""`shardline data` as a user calls it, on a data set that was made in parts."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import yaml

from shardline.components.common.storage import Storage
from shardline.components.sharding.dataset import Dataset
from tests.commands import SMALL, shardline, write


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("data")
    write(where)
    # Both at once: one that was alone would wait for the other for a minute.
    with ThreadPoolExecutor() as parts:
        for done in parts.map(
            lambda part: shardline("shard", "config.yaml", "--part", part, cwd=where), ("0/2", "1/2")
        ):
            assert (done.returncode, done.stdout) == (0, ""), done.stderr
    merged = shardline("shard", "config.yaml", "--merge", "--json", cwd=where)
    assert merged.returncode == 0, merged.stderr
    return where


def test_info_is_of_the_data_set_by_its_config_and_by_its_folder(folder: Path) -> None:
    by_config = json.loads(shardline("data", "info", "config.yaml", "--json", cwd=folder).stdout)
    place = f"data/datasets/{by_config['key']}"
    assert json.loads(shardline("data", "info", place, "--json", cwd=folder).stdout)["splits"] == by_config["splits"]
    assert by_config["sources"][0]["name"] == "corpus" and list(by_config["codecs"]) == ["zstd:3"]
    shown = shardline("data", "info", place, cwd=folder).stdout
    assert by_config["fingerprint"] in shown and "zstd:3" in shown


def test_head_shows_text_and_where_it_is_from(folder: Path) -> None:
    (block,) = json.loads(shardline("data", "head", "config.yaml", "--block", "2", "--json", cwd=folder).stdout)
    document = block["documents"][0]
    assert document["file"].startswith("stdlib:asyncio/") and document["text"].strip()
    beyond = shardline("data", "head", "config.yaml", "--block", "1000000", cwd=folder)
    assert (beyond.returncode, beyond.stdout) == (2, "") and "there is no block 1000000" in beyond.stderr


def test_find_names_the_documents_of_a_step_and_the_step_of_a_sample(folder: Path) -> None:
    step = json.loads(shardline("data", "find", "config.yaml", "--step", "3", "--json", cwd=folder).stdout)
    assert [each["sample"] for each in step["samples"]] == [12, 13, 14, 15] and step["recorded"] is None
    sample = json.loads(shardline("data", "find", "config.yaml", "--sample", "14", "--json", cwd=folder).stdout)
    assert sample == {"step": 3, **step["samples"][2]}
    neither = shardline("data", "find", "config.yaml", cwd=folder)
    assert neither.returncode == 2 and "--step and --sample" in neither.stderr


def test_verify_names_every_file_that_is_not_as_it_was_written(folder: Path) -> None:
    whole = shardline("data", "verify", "config.yaml", "--json", cwd=folder)
    assert whole.returncode == 0 and json.loads(whole.stdout)["whole"]
    shards = sorted((folder / "data" / "shards").iterdir())[:2]
    before = [path.read_bytes() for path in shards]
    try:
        for path, data in zip(shards, before, strict=True):
            path.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
        done = shardline("data", "verify", "config.yaml", "--json", cwd=folder)
        assert done.returncode == 5
        problems = json.loads(done.stdout)["problems"]
        assert len(problems) == 2 and all(any(path.name in each for each in problems) for path in shards)
    finally:
        for path, data in zip(shards, before, strict=True):
            path.write_bytes(data)


def test_append_prints_what_the_config_then_needs(folder: Path) -> None:
    options = ["--at", "2", "--mixture", "corpus=3,new=1"]
    done = shardline("data", "append", "config.yaml", "new", "stdlib:json", *options, cwd=folder)
    assert done.returncode == 0, done.stderr
    added = yaml.safe_load(done.stdout)
    config = yaml.safe_load(SMALL)
    config["corpus"] = {"urls": config["corpus"], **added["corpus"]}
    config["training"].update(added["training"])
    write(folder, yaml.safe_dump(config), name="appended.yaml")
    found = json.loads(shardline("data", "info", "appended.yaml", "--json", cwd=folder).stdout)
    assert [source["name"] for source in found["sources"]] == ["corpus", "new"] and found["base"]
    step = json.loads(shardline("data", "find", "appended.yaml", "--step", "2", "--json", cwd=folder).stdout)
    assert sorted(each["source"] for each in step["samples"]) == ["corpus"] * 3 + ["new"]
    wrong = shardline("data", "append", "config.yaml", "x", "stdlib:csv", "--at", "2", "--mixture", "x", cwd=folder)
    assert wrong.returncode == 2 and "NAME=WEIGHT" in wrong.stderr
    assert Storage(str(folder / "data")).names("datasets")


def test_an_id_above_65535_comes_back_and_a_model_without_it_is_refused(folder: Path) -> None:
    given = json.loads(next(folder.glob("data/datasets/*/tokenizer.json")).read_text())
    given["model"]["vocab"]["<rare>"] = 70_000
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    given["added_tokens"].append({"id": 70_000, "content": "<rare>", **flags})
    (folder / "large.json").write_text(json.dumps(given))
    (folder / "rare.txt").write_text("one two <rare> three four <rare>\n" * 50)
    config = yaml.safe_load(SMALL) | {"run": "large", "corpus": "rare.txt", "tokenizer": {"url": "large.json"}}
    config["sharding"]["held_out"] = 0
    write(folder, yaml.safe_dump(config), name="large.yaml")
    for command in ("shard", "run"):
        refused = shardline(command, "large.yaml", "--set", "model.vocab=65536", cwd=folder)
        assert refused.returncode == 2 and "Traceback" not in refused.stderr
        assert "has 70,001 tokens, and the model 65,536; set model.vocab to that or more" in refused.stderr

    done = shardline("shard", "large.yaml", "--json", cwd=folder)
    assert done.returncode == 0 and json.loads(done.stdout)["vocab"] == 70_001, done.stderr
    dataset = Dataset.open(Storage(str(folder / "data")), json.loads(done.stdout)["key"])
    (document,) = dataset.split("train").documents()
    assert np.count_nonzero(document.tokens == 70_000) == 100 and document.tokens.dtype == np.uint32
    assert dataset.tokenizer().decode(document.tokens) == (folder / "rare.txt").read_text()

    # The data set is there, and another run wants it for a smaller model.
    refused = shardline("train", "large.yaml", "--set", "model.vocab=65536", "--set", "run=smaller", cwd=folder)
    assert refused.returncode == 2 and "Traceback" not in refused.stderr
    assert not list(folder.glob("data/runs/smaller/checkpoints/*"))


@pytest.mark.parametrize("part", ["2/2", "a/b", "1", "-1/2"])
def test_a_part_that_is_none_is_refused(folder: Path, part: str) -> None:
    done = shardline("shard", "config.yaml", f"--part={part}", cwd=folder)
    assert (done.returncode, done.stdout) == (2, "") and "I/N" in done.stderr
