"""The exported folder, read back by the library it is written for."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from shardline.components.common.config.presets import ModelShape
from shardline.components.common.huggingface.names import exported_name
from shardline.components.common.storage import Storage
from shardline.components.evaluation.export import export, export_type, is_exported, plan_shards
from shardline.components.training.model import Transformer
from tests.unit.evaluation.conftest import END, TEXT, InMemory

SOURCE = {"checkpoint": "checkpoints/step-000000000010", "generation": 3}
SHAPE = ModelShape(
    layers=2, dim=32, heads=4, kv_heads=2, hidden=48, vocab=300, rope_theta=500_000.0, norm_eps=1e-6, max_positions=64
)


def written(folder: Path, model: Transformer, tokenizer: bytes, **changes: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {"dtype": torch.float32, "temperature": 0.8, "source": SOURCE, **changes}
    return export(
        Storage(str(folder)),
        weights=InMemory(model.state_dict()),
        shape=model.shape,
        tokenizer=tokenizer,
        end_of_text=END,
        **arguments,
    )


def random_model() -> Transformer:
    torch.manual_seed(1)
    model = Transformer(SHAPE)
    for parameter in model.parameters():
        # Norms too: at their usual value of 1 they could be swapped without a difference.
        torch.nn.init.normal_(parameter, mean=0.1, std=0.2)
    return model


@pytest.mark.parametrize("shard_bytes", [1 << 30, 20_000], ids=["one file", "several files"])
def test_transformers_computes_the_same_logits(tmp_path: Path, tokenizer: bytes, shard_bytes: int) -> None:
    model = random_model()
    marker = written(tmp_path, model, tokenizer, shard_bytes=shard_bytes)
    assert ("model.safetensors.index.json" in marker["files"]) == (shard_bytes == 20_000)
    loaded, notes = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(notes.values()), notes
    tokens = torch.randint(0, SHAPE.vocab, (2, 17))
    with torch.no_grad():
        ours = model(tokens, torch.arange(17).expand(2, 17), None)
        theirs = loaded(tokens).logits
    assert torch.allclose(ours, theirs, atol=1e-5, rtol=0), (ours - theirs).abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_files_are_byte_by_byte_what_the_safetensors_package_writes(
    tmp_path: Path, tokenizer: bytes, dtype: torch.dtype
) -> None:
    model = random_model()
    written(tmp_path / "ours", model, tokenizer, dtype=dtype, shard_bytes=20_000)
    index = json.loads((tmp_path / "ours" / "model.safetensors.index.json").read_text())["weight_map"]
    values = {exported_name(name): tensor.detach().to(dtype) for name, tensor in model.state_dict().items()}
    assert set(index) == set(values) and len(set(index.values())) > 3
    for file in set(index.values()):
        expected = tmp_path / "expected.safetensors"
        save_file({name: values[name] for name in values if index[name] == file}, expected, metadata={"format": "pt"})
        assert (tmp_path / "ours" / file).read_bytes() == expected.read_bytes(), file


def test_config_says_the_same_to_every_reader(tmp_path: Path, tokenizer: bytes) -> None:
    written(tmp_path, random_model(), tokenizer, dtype=export_type("bf16"))
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == SHAPE.rope_theta
    assert config["rms_norm_eps"] == SHAPE.norm_eps
    assert config["torch_dtype"] == config["dtype"] == "bfloat16"
    assert config["tie_word_embeddings"] is False
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.bfloat16}  # noqa: SIM118
        assert len(file.keys()) == config["num_hidden_layers"] * 9 + 3
    assert AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto").dtype == torch.bfloat16


def test_tokenizer_is_the_same(tmp_path: Path, tokenizer: bytes) -> None:
    written(tmp_path, random_model(), tokenizer)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    ours = Tokenizer.from_str(tokenizer.decode())
    text = f"{TEXT}{END} and , more !"
    assert loaded(text)["input_ids"] == ours.encode(text).ids
    assert loaded.decode(loaded(text)["input_ids"]) == text
    config = json.loads((tmp_path / "config.json").read_text())
    assert loaded.eos_token_id == ours.token_to_id(END) == config["eos_token_id"]


def test_marker_lists_what_is_there_and_an_export_replaces_the_one_before(tmp_path: Path, tokenizer: bytes) -> None:
    folder = Storage(str(tmp_path))
    written(tmp_path, random_model(), tokenizer, shard_bytes=20_000)
    assert is_exported(folder, source=SOURCE)
    assert not is_exported(folder, source={**SOURCE, "generation": 4})
    newer = {**SOURCE, "generation": 4}
    marker = written(tmp_path, random_model(), tokenizer, source=newer)
    assert {path.name for path in tmp_path.iterdir()} == {*marker["files"], "export.json"}
    for name, entry in marker["files"].items():
        assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() == entry["sha256"]
    assert is_exported(folder, source=newer)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert not is_exported(folder, source=newer)


def test_an_export_that_is_cut_short_does_not_count(tmp_path: Path, tokenizer: bytes) -> None:
    written(tmp_path, random_model(), tokenizer)
    broken = {**random_model().state_dict(), "extra.weight": torch.zeros(1)}
    with pytest.raises(KeyError, match=r"extra\.weight"):
        export(
            Storage(str(tmp_path)),
            weights=InMemory(broken),
            shape=SHAPE,
            dtype=torch.float32,
            tokenizer=tokenizer,
            end_of_text=END,
            temperature=0.8,
            source=SOURCE,
        )
    assert not is_exported(Storage(str(tmp_path)), source=SOURCE)


def test_an_export_needs_no_local_folder(tokenizer: bytes) -> None:
    folder = Storage("memory://export-test/model")
    export(
        folder,
        weights=InMemory(random_model().state_dict()),
        shape=SHAPE,
        dtype=torch.float32,
        tokenizer=tokenizer,
        end_of_text=END,
        temperature=0.0,
        source=SOURCE,
    )
    assert is_exported(folder, source=SOURCE)
    assert json.loads(folder.read("generation_config.json"))["do_sample"] is False


def test_shards_hold_everything_once_and_in_order() -> None:
    sizes = {"a": 5, "b": 5, "c": 11, "d": 1, "e": 9, "f": 1}
    assert plan_shards(sizes, limit=10) == [["a", "b"], ["c"], ["d", "e"], ["f"]]


@pytest.mark.parametrize("name", ["layers.0.attention.bias", "stages.0.norm.weight", "layers", "bias"])
def test_unknown_parameters_are_refused(name: str) -> None:
    with pytest.raises(KeyError, match="no place"):
        exported_name(name)
