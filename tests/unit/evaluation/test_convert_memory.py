"""A checkpoint is converted in little memory, however large its model; what comes out is what went in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

from shardline.components.common import config as configs
from shardline.components.common.errors import UserError
from shardline.components.common.huggingface.names import exported_name, parameter_shapes
from shardline.components.common.owner import hold
from shardline.components.common.runfolder import DATASET_FILE, adopt_config, run_storage
from shardline.components.common.storage import Storage
from shardline.components.sharding import step as shard_step
from shardline.components.training.checkpoint import catalog
from shardline.components.training.checkpoint.record import CheckpointRecord
from shardline.components.training.checkpoint.saving import Saver
from shardline.components.training.checkpoint.whole import Stored
from tests.commands import environment
from tests.distributed.runs import write_corpus
from tests.unit.training.checkpoint_support import contents, context

MIB = 1 << 20
#: What a conversion may take beside Python and its packages.
ALLOWED = 96 * MIB
CONFIG = """\
version: 1
run: large
storage: {root}/storage
corpus: {root}/corpus
tokenizer: {{vocab: 400}}
sharding: {{unit: 6KiB, row_group: 4, held_out: 0.2, workers: 1}}
model: {{layers: 4, dim: 512, heads: 8, kv_heads: 8, hidden: 12288, vocab: 16384}}
training: {{steps: 1, global_batch: 4, microbatch: 2, sequence: 32}}
"""
#: Converts with the packages already there, so that what is measured is what the conversion adds.
MEASURED = """\
import resource, sys
from shardline.components.common.storage import Storage
from shardline.components.evaluation.convert import convert
from shardline.components.training.checkpoint import catalog
import tokenizers, torch, pyarrow.parquet
torch.ones(1 << 20).to(torch.bfloat16)

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

run = Storage(sys.argv[1])
before = peak()
convert(run, catalog.committed(run)[0], target=sys.argv[2], shard_bytes=int(sys.argv[3]))
print(peak() - before)
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Storage:
    root = tmp_path_factory.mktemp("large")
    write_corpus(root / "corpus")
    config = configs.parse(CONFIG.format(root=root), source="large").config
    key = shard_step.run(config)["key"]
    run = run_storage(config)
    generator = torch.Generator().manual_seed(0)
    tensors = {
        f"model.{name}": torch.randn(size, generator=generator) / 32
        for name, size in parameter_shapes(config.model.shape(400)).items()
    }
    with hold(run) as lease:
        adopt_config(run, config)
        run.write(DATASET_FILE, json.dumps({"key": key}).encode())
        saver = Saver(
            context(run, fence=lease.fence), tensors=lambda: tensors, background=False, on_saved=lambda done: None
        )
        saver.start(contents(1))
        saver.wait()
    return run


def newest(run: Storage) -> CheckpointRecord:
    return catalog.committed(run)[0]


def converted(run: Storage, target: Path, *, shard_bytes: int) -> int:
    """Convert in a process of its own; returns the bytes by which its peak grew."""
    words = [sys.executable, "-c", MEASURED, run.url, str(target), str(shard_bytes)]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.parametrize("name", ["hf", "one.safetensors"])
def test_the_model_is_never_in_memory_as_a_whole(large: Storage, tmp_path: Path, name: str) -> None:
    weights = sum(file["size"] for file in newest(large).files.values())
    assert weights > 3 * ALLOWED
    assert converted(large, tmp_path / name, shard_bytes=128 * MIB) < ALLOWED
    stored = Stored(large, newest(large), prefix="model.")
    files = list((tmp_path / name).glob("*.safetensors")) if name == "hf" else [tmp_path / name]
    assert all(file.stat().st_size <= 129 * MIB for file in files) or name != "hf"
    found = {each: value for file in files for each, value in load_file(file).items()}
    assert len(found) == len(stored.shapes)
    for each in stored.shapes:
        value = found[exported_name(each) if name == "hf" else each]
        assert torch.equal(value, torch.cat(list(stored.blocks(each)))), each
    if name == "hf":
        model, notes = LlamaForCausalLM.from_pretrained(tmp_path / name, output_loading_info=True)
        assert not any(notes.values()) and len(files) > 2
        assert torch.equal(model.lm_head.weight, found["lm_head.weight"])


def test_tensors_of_another_model_are_refused(large: Storage) -> None:
    stored = Stored(large, newest(large), prefix="model.")
    with pytest.raises(UserError, match=r"of another model: norm\.weight should be 8 and is 512, more\.weight"):
        stored.expect({"norm.weight": (8,), "more.weight": (2, 2)})
