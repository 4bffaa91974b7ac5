"""From a Hugging Face folder to our model and back: the same bits, the same meaning, for every reader."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

from shardline.components.common.huggingface.pretrained import Pretrained
from shardline.components.common.storage import Storage
from shardline.components.evaluation.export import export
from shardline.components.training.model import Transformer
from shardline.components.training.pretrained import fill
from tests.pretrained import FEATURES, save
from tests.unit.evaluation.conftest import END, InMemory


def back(source: Path, folder: Path, tokenizer: bytes, *, dtype: torch.dtype, shard_bytes: int) -> None:
    found = Pretrained(str(source))
    model = Transformer(found.shape)
    fill(model.named_parameters(), weights=found.weights)
    export(
        Storage(str(folder)),
        weights=InMemory(model.state_dict()),
        shape=found.shape,
        dtype=dtype,
        tokenizer=tokenizer,
        end_of_text=END,
        temperature=0.0,
        source={},
        shard_bytes=shard_bytes,
    )


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    return {name: value for file in folder.glob("*.safetensors") for name, value in load_file(file).items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("feature", FEATURES)
def test_a_model_comes_back_to_the_bit(tmp_path: Path, tokenizer: bytes, feature: str, dtype: torch.dtype) -> None:
    source, folder = tmp_path / "source", tmp_path / "back"
    save(source, dtype=dtype, **FEATURES[feature])
    back(source, folder, tokenizer, dtype=dtype, shard_bytes=20_000)
    before, after = tensors_of(source), tensors_of(folder)
    assert sorted(after) == sorted(before)
    assert all(torch.equal(after[name], before[name]) and after[name].dtype == dtype for name in before)
    # No key is missing or unexpected, and what it computes is the same.
    loaded, notes = LlamaForCausalLM.from_pretrained(folder, output_loading_info=True, dtype="auto")
    assert not any(notes.values()), notes
    theirs, tokens = LlamaForCausalLM.from_pretrained(source, dtype="auto"), torch.arange(2 * 90).view(2, 90)
    with torch.no_grad():
        assert torch.equal(loaded(tokens).logits, theirs(tokens).logits)
    assert Pretrained(str(folder)).shape == Pretrained(str(source)).shape
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(value.nbytes for value in after.values())
    assert sorted(index["weight_map"]) == sorted(after)


def test_every_value_is_under_the_names_of_both_major_versions(tmp_path: Path, tokenizer: bytes) -> None:
    save(tmp_path / "source", **FEATURES["all at once"], rope_theta=250_000.0)
    back(tmp_path / "source", tmp_path / "back", tokenizer, dtype=torch.float32, shard_bytes=1 << 30)
    config = json.loads((tmp_path / "back" / "config.json").read_text())
    assert config["tie_word_embeddings"] is True
    assert config["rope_parameters"] == {**config["rope_scaling"], "rope_theta": config["rope_theta"]}
    assert (config["rope_theta"], config["rms_norm_eps"], config["head_dim"]) == (250_000.0, 1e-6, 12)
    assert config["rope_scaling"]["rope_type"] == "llama3" and config["max_position_embeddings"] == 128
    # What a reader of one version alone takes from it is the whole.
    shape = Pretrained(str(tmp_path / "back")).shape
    for other in (("rope_parameters",), ("rope_theta", "rope_scaling")):
        kept = {key: value for key, value in config.items() if key not in other}
        (tmp_path / "back" / "config.json").write_text(json.dumps(kept))
        assert Pretrained(str(tmp_path / "back")).shape == shape
