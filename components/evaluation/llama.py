"""How a model of ours is called and described in Hugging Face's Llama format. Pure: names and dictionaries only.

The weights themselves are the same: our rotary embedding pairs the halves of a head as Hugging Face's does, so
nothing is permuted.
"""

from __future__ import annotations

from typing import Any

from shardline.components.common.config.presets import ModelShape

_TOP = {
    "embedding.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
_LAYER = {
    "attention_norm.weight": "input_layernorm.weight",
    "attention.query.weight": "self_attn.q_proj.weight",
    "attention.key.weight": "self_attn.k_proj.weight",
    "attention.value.weight": "self_attn.v_proj.weight",
    "attention.output.weight": "self_attn.o_proj.weight",
    "feed_forward_norm.weight": "post_attention_layernorm.weight",
    "feed_forward.gate.weight": "mlp.gate_proj.weight",
    "feed_forward.up.weight": "mlp.up_proj.weight",
    "feed_forward.down.weight": "mlp.down_proj.weight",
}


def exported_name(name: str) -> str:
    """What Hugging Face calls our parameter `name`.

    Raises:
        KeyError: the parameter has no place in a Llama model.
    """
    if name in _TOP:
        return _TOP[name]
    prefix, layer, rest = (*name.split(".", 2), "", "")[:3]
    if prefix != "layers" or rest not in _LAYER:
        raise KeyError(f"parameter {name!r} has no place in a Llama model")
    return f"model.layers.{layer}.{_LAYER[rest]}"


def model_config(shape: ModelShape, *, dtype: str, end_of_text: int) -> dict[str, Any]:
    """config.json.

    Some values are under two names, as the major versions of transformers differ: `rope_theta` and `torch_dtype` are
    read by 4, `rope_parameters` and `dtype` by 5.
    """
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
        "rope_scaling": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta},
        "max_position_embeddings": shape.max_positions,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": end_of_text,
        "eos_token_id": end_of_text,
        "torch_dtype": dtype,
        "dtype": dtype,
        "use_cache": True,
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
