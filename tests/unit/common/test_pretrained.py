"""A model folder to start from: what its config.json may say, and what is wrong with its files."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from shardline.components.common.errors import ConfigError, DamagedData, ShardlineError, UserError
from shardline.components.common.huggingface.names import parameter_shapes
from shardline.components.common.huggingface.pretrained import Pretrained
from shardline.components.common.huggingface.reading import shape_of
from shardline.components.common.storage import Storage
from shardline.components.training.model import Transformer
from tests.pretrained import FEATURES, LLAMA3, edit, save


def refusal(folder: Path, kind: type[ShardlineError]) -> str:
    with pytest.raises(kind) as caught:
        Pretrained(str(folder))
    assert str(folder) in str(caught.value)
    return str(caught.value)


# what config.json says


@pytest.mark.parametrize("feature", FEATURES)
def test_the_shape_is_the_models(tmp_path: Path, feature: str) -> None:
    theirs = save(tmp_path, **FEATURES[feature])
    shape = Pretrained(str(tmp_path)).shape
    config = theirs.config
    assert (shape.dim, shape.hidden, shape.layers, shape.vocab) == (32, 48, 4, 320)
    assert (shape.heads, shape.kv_heads, shape.head_dim) == (4, config.num_key_value_heads, config.head_dim)
    assert (shape.rope_theta, shape.norm_eps, shape.max_positions) == (config.rope_theta, config.rms_norm_eps, 128)
    assert shape.tied == config.tie_word_embeddings
    assert (shape.rope_scaling is None) == (config.rope_scaling is None)
    assert shape.parameters == theirs.num_parameters()
    ours = {name: tuple(parameter.shape) for name, parameter in Transformer(shape).named_parameters()}
    assert parameter_shapes(shape) == ours


def test_a_published_config_is_understood() -> None:
    # config.json of meta-llama/Llama-3.2-1B, and the number of parameters on its model card.
    content = {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 128000,
        "eos_token_id": 128001,
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "initializer_range": 0.02,
        "intermediate_size": 8192,
        "max_position_embeddings": 131072,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": 32,
        "num_hidden_layers": 16,
        "num_key_value_heads": 8,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "factor": 32.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.45.0.dev0",
        "use_cache": True,
        "vocab_size": 128256,
    }
    shape = shape_of(content, where="here")
    assert shape.parameters == 1_235_814_400
    assert (shape.tied, shape.max_positions, shape.rope_theta) == (True, 131_072, 500_000.0)
    assert shape.rope_scaling and shape.rope_scaling.factor == 32


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_type", "mistral"),
        ("architectures", ["LlamaForSequenceClassification"]),
        ("hidden_act", "gelu"),
        ("attention_bias", True),
        ("mlp_bias", True),
        ("attention_dropout", 0.1),
        ("pretraining_tp", 2),
        ("sliding_window", 4096),
        ("partial_rotary_factor", 0.5),
        ("quantization_config", {"quant_method": "gptq", "bits": 4}),
        ("auto_map", {"AutoModelForCausalLM": "modeling.Own"}),
        ("num_hidden_layers", 0),
        ("hidden_size", "32"),
        ("num_attention_heads", True),
        ("rope_theta", -1.0),
        ("tie_word_embeddings", "no"),
        ("vocab_size", None),
    ],
)
def test_what_is_not_supported_is_refused_by_name(model: Path, key: str, value: Any) -> None:
    edit(model, **{key: value})
    message = refusal(model, ConfigError)
    assert f"config.json: {key}" in message
    assert value is None or repr(value) in message


@pytest.mark.parametrize(
    ("rope", "named"),
    [
        ({"rope_type": "yarn", "factor": 4.0}, "rope_scaling.rope_type = 'yarn'"),
        ({"type": "linear", "factor": 2.0}, "rope_scaling.rope_type = 'linear'"),
        ({**LLAMA3, "factor": None}, "rope_scaling.factor = None"),
        ({**LLAMA3, "attention_factor": 0.5}, "rope_scaling.attention_factor = 0.5"),
        ([8.0], "rope_scaling = [8.0]"),
    ],
)
def test_other_ways_to_stretch_positions_are_refused_by_name(model: Path, rope: Any, named: str) -> None:
    edit(model, rope_scaling=rope)
    assert named in refusal(model, ConfigError)


def test_every_problem_is_named_at_once(model: Path) -> None:
    edit(model, attention_bias=True, mlp_bias=True, layer_types=["full_attention"])
    with pytest.raises(ConfigError) as caught:
        Pretrained(str(model))
    assert [text.split("config.json: ")[1].split(" = ")[0] for text in caught.value.problems] == [
        "attention_bias",
        "mlp_bias",
        "layer_types",
    ]


def test_keys_that_are_not_set_and_notes_are_no_problem(model: Path) -> None:
    edit(model, sliding_window=None, quantization_config=None, use_sliding_window=False, _name_or_path="somewhere")
    assert Pretrained(str(model)).shape.layers == 4


def test_rope_parameters_of_later_versions_say_the_same(model: Path, made: Path) -> None:
    plain = Pretrained(str(made)).shape
    edit(model, rope_theta=None, rope_parameters={"rope_type": "default", "rope_theta": 10_000.0})
    assert Pretrained(str(model)).shape == plain
    edit(model, rope_parameters={**LLAMA3, "rope_theta": 250_000.0})
    later = Pretrained(str(model)).shape
    edit(model, rope_theta=250_000.0, rope_scaling=LLAMA3, rope_parameters=None)
    assert Pretrained(str(model)).shape == later != plain
    edit(model, rope_parameters={"rope_type": "default", "rope_theta": 10_000.0})
    assert "rope_theta is 250000.0 and 10000.0" in refusal(model, ConfigError)


# what is wrong with its files


def shards(folder: Path) -> list[Path]:
    found = sorted(folder.glob("*.safetensors"))
    assert len(found) > 2
    return found


def test_a_missing_file_is_named(model: Path) -> None:
    gone = shards(model)[1]
    gone.unlink()
    message = refusal(model, DamagedData)
    assert gone.name in message and "is missing" in message


@pytest.mark.parametrize("left", [0, 5, 100, -1])
def test_a_file_that_was_cut_short_is_named(model: Path, left: int) -> None:
    cut = shards(model)[1]
    cut.write_bytes(cut.read_bytes()[:left])
    message = refusal(model, DamagedData)
    assert cut.name in message and "bytes" in message


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b"{",
        b"\xff\xfe{}",
        b"{}",
        b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, -4]}}',
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}',
        b'{"a": {"shape": [1], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},'
        b' "b": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}',
    ],
)
def test_a_header_that_is_none_is_damage(model: Path, header: bytes) -> None:
    broken = shards(model)[0]
    broken.write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    assert broken.name in refusal(model, DamagedData)


def test_a_header_longer_than_any_is_not_read(model: Path) -> None:
    broken = shards(model)[0]
    broken.write_bytes(struct.pack("<Q", 1 << 62) + bytes(100))
    assert broken.name in refusal(model, DamagedData)


@pytest.mark.parametrize("content", ["[]", "{", '{"weight_map": {}}', '{"weight_map": {"a": "../../x.safetensors"}}'])
def test_an_index_that_is_none_is_damage(model: Path, content: str) -> None:
    (model / "model.safetensors.index.json").write_text(content)
    assert "model.safetensors.index.json" in refusal(model, DamagedData)


def test_an_index_of_other_files_is_damage(model: Path) -> None:
    path = model / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["model.norm.weight"] = index["weight_map"]["model.embed_tokens.weight"]
    path.write_text(json.dumps(index))
    assert "has no tensor model.norm.weight" in refusal(model, DamagedData)


def rewritten(folder: Path, change: Any) -> None:
    """Pass the tensors of the folder's one file through `change`."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A model in one file."""
    save(tmp_path / "whole", shard_size="1GB")
    return tmp_path / "whole"


def test_tensors_that_do_not_fit_the_config_are_named(whole: Path) -> None:
    def without(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["model.layers.2.mlp.up_proj.weight"]

    rewritten(whole, without)
    assert "has no tensor model.layers.2.mlp.up_proj.weight" in refusal(whole, DamagedData)
    save(whole, shard_size="1GB", intermediate_size=64)
    edit(whole, intermediate_size=48)
    assert "gate_proj.weight is [64, 32]; by config.json it is [48, 32]" in refusal(whole, DamagedData)
    save(whole, shard_size="1GB", attention_bias=True)
    edit(whole, attention_bias=False)
    assert "model.layers.0.self_attn.k_proj.bias" in refusal(whole, UserError)


def test_types_that_we_do_not_read_are_named(whole: Path) -> None:
    rewritten(whole, lambda tensors: tensors.update({"lm_head.weight": tensors["lm_head.weight"].to(torch.int8)}))
    assert "lm_head.weight is of type I8; supported are F64, F32, F16, BF16" in refusal(whole, UserError)


def test_a_tied_model_may_have_its_head_written_out_if_it_is_the_embedding(whole: Path) -> None:
    edit(whole, tie_word_embeddings=True)
    assert "lm_head.weight differs from model.embed_tokens.weight" in refusal(whole, UserError)
    rewritten(whole, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}))
    assert Pretrained(str(whole)).shape.tied


def test_pickles_are_refused_unread(model: Path) -> None:
    for path in (*shards(model), model / "model.safetensors.index.json"):
        path.unlink()
    assert "has neither model.safetensors nor" in refusal(model, UserError)
    (model / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch " + bytes(model / "ran") + b"'\ntR.")
    message = refusal(model, UserError)
    assert "pytorch_model.bin: is a pickle" in message and "safetensors" in message
    assert not (model / "ran").exists()


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    assert "config.json: not found" in refusal(tmp_path, UserError)
    (tmp_path / "config.json").write_text("no JSON")
    refusal(tmp_path, DamagedData)


def test_a_fingerprint_tells_models_apart(model: Path, made: Path, tmp_path: Path) -> None:
    first = Pretrained(str(made)).fingerprint
    assert Pretrained(str(model)).fingerprint == first, "a copy is the same model"
    for path in model.iterdir():
        os.utime(path, (1, 1))
    assert Pretrained(str(model)).fingerprint == first
    edit(model, rms_norm_eps=2e-5)
    assert Pretrained(str(model)).fingerprint != first
    tuned = Path(shutil.copytree(made, tmp_path / "tuned"))
    largest = max(shards(tuned), key=lambda path: path.stat().st_size)
    tensors = {name: tensor * 1.001 for name, tensor in load_file(largest).items()}
    save_file(tensors, largest, metadata={"format": "pt"})
    assert Pretrained(str(tuned)).fingerprint != first


def test_a_folder_elsewhere_is_read_alike(made: Path) -> None:
    there = Storage("memory://pretrained-test/model")
    for path in made.iterdir():
        there.write(path.name, path.read_bytes())
    found, here = Pretrained(there.url), Pretrained(str(made))
    assert (found.shape, found.fingerprint) == (here.shape, here.fingerprint)
