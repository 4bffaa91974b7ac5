"""Small random Llama models, made and written by transformers: what a run of ours may start from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

SIZES = {
    "vocab_size": 320,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
#: What a model may have that another has not; the first is the plain one.
FEATURES: dict[str, dict[str, Any]] = {
    "grouped heads": {},
    "a head for each query": {"num_key_value_heads": 4},
    "one head of keys": {"num_key_value_heads": 1},
    "tied embeddings": {"tie_word_embeddings": True},
    "stretched positions": {"rope_scaling": LLAMA3, "rope_theta": 500_000.0},
    "another rope base and epsilon": {"rope_theta": 1_000.0, "rms_norm_eps": 1e-2},
    "wide heads": {"head_dim": 16},
    "all at once": {"tie_word_embeddings": True, "rope_scaling": LLAMA3, "head_dim": 12, "rms_norm_eps": 1e-6},
}


def save(
    folder: Path, *, dtype: torch.dtype = torch.float32, shard_size: str = "20KB", **changes: Any
) -> LlamaForCausalLM:
    """Write a random model of `SIZES` with `changes` into `folder`, in several files unless they may be larger."""
    torch.manual_seed(7)
    model = LlamaForCausalLM(LlamaConfig(**{**SIZES, **json.loads(json.dumps(changes))}))
    for parameter in model.parameters():
        # Norms too: at their usual value of 1 they could be swapped without a difference.
        torch.nn.init.normal_(parameter, mean=0.05, std=0.2)
    model = model.to(dtype).eval()
    model.save_pretrained(folder, max_shard_size=shard_size)
    return model


def edit(folder: Path, **changes: Any) -> None:
    """Change keys of the folder's config.json; None as a value stays there as null."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
