"""What our parameters are called in Hugging Face's Llama format, and the shape each one has. Pure.

The values are the same: our rotary embedding pairs the halves of a head as Hugging Face's does, so nothing is permuted.
"""

from __future__ import annotations

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
#: The output head, which a model with tied embeddings does not have, or has as a copy of EMBEDDING.
HEAD, EMBEDDING = _TOP["head.weight"], _TOP["embedding.weight"]


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


def parameter_shapes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Every parameter of a model of `shape`, by our name, in the model's order."""
    query, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    layer = {
        "attention_norm.weight": (shape.dim,),
        "attention.query.weight": (query, shape.dim),
        "attention.key.weight": (kv, shape.dim),
        "attention.value.weight": (kv, shape.dim),
        "attention.output.weight": (shape.dim, query),
        "feed_forward_norm.weight": (shape.dim,),
        "feed_forward.gate.weight": (shape.hidden, shape.dim),
        "feed_forward.up.weight": (shape.hidden, shape.dim),
        "feed_forward.down.weight": (shape.dim, shape.hidden),
    }
    found: dict[str, tuple[int, ...]] = {"embedding.weight": (shape.vocab, shape.dim)}
    for index in range(shape.layers):
        found.update({f"layers.{index}.{name}": sizes for name, sizes in layer.items()})
    found["norm.weight"] = (shape.dim,)
    if not shape.tied:
        found["head.weight"] = (shape.vocab, shape.dim)
    return found
