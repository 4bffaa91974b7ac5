"""The command line with a model to start from: what is wrong with it is said at once, with the right exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.commands import shardline, write
from tests.pretrained import edit, save

CONFIG = """\
version: 1
run: small
storage: ./data
corpus: "stdlib:asyncio"
tokenizer: {url: model/tokenizer.json}
model: {url: model}
training: {steps: 4, global_batch: 4, microbatch: 2, sequence: 64, schedule: {warmup: 1}}
resources: {processes: 1}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory with a config and a model, whose tokenizer has four tokens too many."""
    save(tmp_path / "model")
    tokens = {chr(256 + number): number for number in range(323)}
    description = {
        "version": "1.0",
        "model": {"type": "BPE", "vocab": {**tokens, "<|endoftext|>": 323}, "merges": []},
        "added_tokens": [
            {
                "id": 323,
                "content": "<|endoftext|>",
                "special": True,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
            }
        ],
    }
    (tmp_path / "model" / "tokenizer.json").write_text(json.dumps(description))
    write(tmp_path, CONFIG)
    return tmp_path


def test_a_model_is_checked_before_anything_is_done(folder: Path) -> None:
    done = shardline("config", "check", "config.yaml", cwd=folder)
    assert (done.returncode, done.stdout) == (0, "config.yaml: valid\n"), done.stderr
    planned = shardline("plan", "config.yaml", "--json", cwd=folder)
    assert json.loads(planned.stdout)["parameters"] == 51_488
    edit(folder / "model", attention_bias=True, sliding_window=512)
    for command in (("config", "check"), ("run",), ("shard",), ("plan",)):
        done = shardline(*command, "config.yaml", cwd=folder)
        assert (done.returncode, done.stdout) == (2, "")
        assert "model/config.json: attention_bias = True: is not supported" in done.stderr
        assert "sliding_window = 512" in done.stderr and "Traceback" not in done.stderr
    assert not (folder / "data" / "runs" / "small" / "config.yaml").exists()


@pytest.mark.parametrize("left", [None, 1000], ids=["missing", "cut short"])
def test_a_damaged_file_is_named(folder: Path, left: int | None) -> None:
    file = sorted((folder / "model").glob("*.safetensors"))[1]
    data = file.read_bytes()
    file.unlink()
    if left is not None:
        file.write_bytes(data[:left])
    done = shardline("run", "config.yaml", cwd=folder)
    assert (done.returncode, done.stdout) == (5, "")
    assert file.name in done.stderr and "Traceback" not in done.stderr


def test_tokens_that_the_model_does_not_know_are_refused_before_sharding(folder: Path) -> None:
    done = shardline("shard", "config.yaml", cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert "tokenizer.json: has 324 tokens, and the model 320; set tokenizer.url to the model's own" in done.stderr


def test_a_sequence_beyond_the_positions_is_refused(folder: Path) -> None:
    done = shardline("run", "config.yaml", "--set", "training.sequence=256", cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--set: training.sequence = 256: must not exceed model.max_positions (128)" in done.stderr
