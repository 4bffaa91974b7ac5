"""Models that transformers made and ours, with the same weights, compute the same."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from shardline.components.common.config.presets import ModelShape, RopeScaling
from shardline.components.common.errors import DamagedData
from shardline.components.common.huggingface.pretrained import Pretrained
from shardline.components.training import pretrained
from shardline.components.training.model import Transformer, frequencies
from shardline.components.training.pretrained import fill
from tests.pretrained import FEATURES, LLAMA3, SIZES, save

LENGTH = 100
#: Logits are about 1. transformers computes the rotation in float32 whatever the model's type is.
AGREES = 1e-6
#: What each feature is when it is ignored.
IGNORED: dict[str, dict[str, Any]] = {
    "stretched positions": {"rope_scaling": None},
    "another rope base and epsilon": {"norm_eps": 1e-5},
    "all at once": {"rope_scaling": None},
}


def imported(folder: Path, *, dtype: torch.dtype = torch.float32, **changes: Any) -> Transformer:
    found = Pretrained(str(folder))
    model = Transformer(replace(found.shape, **changes)).to(dtype)
    fill(model.named_parameters(), weights=found.weights)
    return model


def tokens() -> Tensor:
    return torch.randint(SIZES["vocab_size"], (2, LENGTH), generator=torch.Generator().manual_seed(3))  # type: ignore[call-overload,no-any-return]


@torch.no_grad()
def logits(model: Transformer) -> Tensor:
    found: Tensor = model(tokens(), torch.arange(LENGTH).expand(2, LENGTH))
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
@pytest.mark.parametrize("feature", FEATURES)
@torch.no_grad()
def test_logits_are_those_of_transformers(tmp_path: Path, feature: str, dtype: torch.dtype) -> None:
    theirs = save(tmp_path, dtype=dtype, **FEATURES[feature])
    expected = theirs(tokens()).logits
    assert (logits(imported(tmp_path, dtype=dtype)) - expected).abs().max() <= AGREES
    if feature in IGNORED:
        assert (logits(imported(tmp_path, dtype=dtype, **IGNORED[feature])) - expected).abs().max() > 100 * AGREES


def test_values_arrive_to_the_bit_and_a_piece_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = save(tmp_path, dtype=torch.bfloat16)
    whole = dict(imported(tmp_path).named_parameters())
    assert torch.equal(whole["embedding.weight"], theirs.model.embed_tokens.weight.float())
    assert torch.equal(whole["layers.3.feed_forward.down.weight"], theirs.model.layers[3].mlp.down_proj.weight.float())
    monkeypatch.setattr(pretrained, "_CHUNK", 200)
    pieces = dict(imported(tmp_path).named_parameters())
    assert all(torch.equal(whole[name], pieces[name]) for name in whole)


def test_a_stage_reads_its_own_part_alone(tmp_path: Path) -> None:
    save(tmp_path, tie_word_embeddings=True)
    found = Pretrained(str(tmp_path))
    whole = imported(tmp_path).state_dict()
    read = 0
    for layers in (range(1), range(1, 3), range(3, 4)):
        stage = Transformer(found.shape, layers=layers)
        read += fill(stage.named_parameters(), weights=found.weights)
        assert all(torch.equal(value, whole[name]) for name, value in stage.state_dict().items())
    twice = whole["embedding.weight"].numel()
    assert read == 4 * (sum(value.numel() for value in whole.values()) + twice)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_not_finite_is_named(tmp_path: Path, value: float) -> None:
    save(tmp_path, shard_size="1GB")
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    tensors["model.norm.weight"][3] = value
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(DamagedData, match=r"model\.norm\.weight has values that are not finite"):
        imported(tmp_path)


def test_a_file_that_shrinks_under_our_feet_is_damage(tmp_path: Path) -> None:
    save(tmp_path, shard_size="1GB")
    found = Pretrained(str(tmp_path))
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(DamagedData, match=r"model\.safetensors: ends before byte"):
        fill(Transformer(found.shape).named_parameters(), weights=found.weights)


def test_frequencies_are_those_of_transformers() -> None:
    # The published model's own numbers.
    rope = {**LLAMA3, "original_max_position_embeddings": 8192}
    config = LlamaConfig(hidden_size=4096, num_attention_heads=32, rope_theta=500_000.0, rope_scaling=rope)
    scaling = RopeScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_positions=8192)
    shape = ModelShape(
        layers=1, dim=4096, heads=32, kv_heads=8, hidden=1, vocab=1, rope_theta=500_000.0, rope_scaling=scaling
    )
    for kind, ours in (("llama3", shape), ("default", replace(shape, rope_scaling=None))):
        theirs, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
        assert factor == 1
        assert torch.allclose(frequencies(ours, dtype=torch.float32), theirs, rtol=1e-6, atol=0)
    # The highest are left alone, the lowest divided, and the order stays.
    stretched, plain = (
        frequencies(shape, dtype=torch.float64),
        frequencies(replace(shape, rope_scaling=None), dtype=torch.float64),
    )
    assert torch.equal(stretched[:10], plain[:10])
    assert torch.equal(stretched[-10:], plain[-10:] / 8)
    assert (stretched.diff() < 0).all()
