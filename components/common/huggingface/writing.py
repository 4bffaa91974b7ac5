"""What we write of a Hugging Face Llama folder, but for the weights themselves. Pure. Called by the export."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from typing import Any

from shardline.components.common.config.presets import ModelShape
from shardline.components.common.huggingface.weights import ELEMENT_BYTES


def weights_header(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> bytes:
    """The beginning of a safetensors file, after which the values of `tensors` follow one after the other.

    Args:
        tensors: the type of each, as safetensors calls it, and its shape.
    """
    # Without the format mark, transformers refuses the file.
    content: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + prod(shape) * ELEMENT_BYTES[dtype]
        content[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    header = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header


def model_config(shape: ModelShape, *, dtype: str, end_of_text: int) -> dict[str, Any]:
    """config.json.

    Some values are under two names, as the major versions of transformers differ: `rope_theta`, `rope_scaling` and
    `torch_dtype` are read by 4, `rope_parameters` and `dtype` by 5.
    """
    scaling = _rope_scaling(shape)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocab,
        "hidden_size": shape.dim,
        "intermediate_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_theta,
        "rope_scaling": scaling,
        "rope_parameters": {**(scaling or {"rope_type": "default"}), "rope_theta": shape.rope_theta},
        "max_position_embeddings": shape.max_positions,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "tie_word_embeddings": shape.tied,
        "bos_token_id": end_of_text,
        "eos_token_id": end_of_text,
        "torch_dtype": dtype,
        "dtype": dtype,
        "use_cache": True,
    }


def _rope_scaling(shape: ModelShape) -> dict[str, Any] | None:
    scaling = shape.rope_scaling
    if scaling is None:
        return None
    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "original_max_position_embeddings": scaling.original_max_positions,
    }


def generation_config(*, end_of_text: int, temperature: float) -> dict[str, Any]:
    """generation_config.json."""
    ids = {"bos_token_id": end_of_text, "eos_token_id": end_of_text, "pad_token_id": end_of_text}
    return {**ids, "do_sample": True, "temperature": temperature} if temperature else {**ids, "do_sample": False}


def tokenizer_config(*, end_of_text: str, end_of_text_id: int, max_positions: int) -> dict[str, Any]:
    """tokenizer_config.json, for the tokenizer.json beside it."""
    special = {"content": end_of_text, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_positions,
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
        "bos_token": end_of_text,
        "eos_token": end_of_text,
        "added_tokens_decoder": {str(end_of_text_id): {**special, "special": True}},
    }


def special_tokens(end_of_text: str) -> dict[str, str]:
    """special_tokens_map.json."""
    return {"bos_token": end_of_text, "eos_token": end_of_text}
