"""The shape of a model from its config.json. Pure: a dictionary in, a ModelShape out.

Called by `pretrained`. Closed: a key that is not known here and is set may change what the model computes, so it is
refused by name; so is a known one with a value that our model cannot compute.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shardline.components.common.config.presets import ModelShape, RopeScaling
from shardline.components.common.errors import ConfigError

#: Keys that must be there, and those that transformers has a default for (LlamaConfig).
_NEEDED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_DEFAULTS = {"rms_norm_eps": 1e-6, "rope_theta": 10_000.0, "max_position_embeddings": 2048}
#: What our model computes; each may be left out, but for the first.
_FIXED: dict[str, tuple[Any, ...]] = {
    "model_type": ("llama",),
    "architectures": (["LlamaForCausalLM"], ["LlamaModel"], None),
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "attention_dropout": (0.0, None),
    "mlp_bias": (False,),
    "pretraining_tp": (1, None),
    "partial_rotary_factor": (1.0, None),
}
_READ = {*_NEEDED, *_DEFAULTS, *_FIXED, "num_key_value_heads", "head_dim", "tie_word_embeddings"}
_READ |= {"rope_scaling", "rope_parameters"}
#: Keys that say nothing of what the model computes. Those that begin with `_` are transformers' own notes.
_HARMLESS = {
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "dtype",
    "torch_dtype",
    "initializer_range",
    "transformers_version",
    "use_cache",
    "return_dict",
}
_SCALING = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def shape_of(content: Mapping[str, Any], *, where: str) -> ModelShape:
    """The shape that a config.json describes.

    Args:
        where: its URL.

    Raises:
        ConfigError: with a message for each key that is missing, is no number or is not supported.
    """
    problems = [f"{where}: {problem}" for problem in _problems(content)]
    if problems:
        raise ConfigError(problems)
    values = {**_DEFAULTS, **{key: value for key, value in content.items() if value is not None}}
    return ModelShape(
        vocab=values["vocab_size"],
        dim=values["hidden_size"],
        hidden=values["intermediate_size"],
        layers=values["num_hidden_layers"],
        heads=values["num_attention_heads"],
        kv_heads=values.get("num_key_value_heads", values["num_attention_heads"]),
        head_width=values.get("head_dim") or values["hidden_size"] // values["num_attention_heads"],
        max_positions=values["max_position_embeddings"],
        norm_eps=float(values["rms_norm_eps"]),
        rope_theta=float(next(iter(_thetas(content)), values["rope_theta"])),
        rope_scaling=_scaling_of(content),
        tied=values.get("tie_word_embeddings", False),
    )


def _problems(content: Mapping[str, Any]) -> Iterator[str]:
    if content.get("model_type") not in _FIXED["model_type"]:
        # The other keys of another architecture mean other things.
        yield f"model_type = {content.get('model_type')!r}: is not supported; must be 'llama'"
        return
    for key in _NEEDED:
        if content.get(key) is None:
            yield f"{key}: is missing"
    whole = (*_NEEDED, "num_key_value_heads", "head_dim", "max_position_embeddings")
    for key in whole:
        value = content.get(key)
        if value is not None and not (_is_number(value, int) and value > 0):
            yield f"{key} = {value!r}: should be a whole number above 0"
    for key in ("rms_norm_eps", "rope_theta"):
        value = content.get(key)
        if value is not None and not (_is_number(value, int, float) and value > 0):
            yield f"{key} = {value!r}: should be a number above 0"
    if not isinstance(content.get("tie_word_embeddings", False), bool):
        yield f"tie_word_embeddings = {content['tie_word_embeddings']!r}: should be true or false"
    for key, supported in _FIXED.items():
        if key in content and content[key] not in supported:
            yield f"{key} = {content[key]!r}: is not supported; must be {supported[0]!r}"
    for key, value in content.items():
        known = key in _READ or key in _HARMLESS or key.startswith("_")
        if not known and value is not None and value is not False:
            yield f"{key} = {value!r}: is not supported: it may change what the model computes"
    yield from _rope_problems(content)


def _rope_problems(content: Mapping[str, Any]) -> Iterator[str]:
    if len(set(_thetas(content))) > 1:
        yield f"rope_theta is {' and '.join(map(str, _thetas(content)))}"
    for name in ("rope_scaling", "rope_parameters"):
        found = content.get(name)
        if found is None:
            continue
        if not isinstance(found, dict):
            yield f"{name} = {found!r}: should be a mapping"
            continue
        kind = _kind(found)
        if kind == "default":
            continue
        if kind != "llama3":
            yield f"{name}.rope_type = {kind!r}: is not supported; must be 'llama3' or 'default'"
            continue
        for key in _SCALING:
            if not (_is_number(found.get(key), int, float) and found[key] > 0):
                yield f"{name}.{key} = {found.get(key)!r}: should be a number above 0"
        for key in sorted(set(found) - {*_SCALING, "rope_type", "type", "rope_theta"}):
            yield f"{name}.{key} = {found[key]!r}: is not supported"


def _kind(rope: Mapping[str, Any]) -> Any:
    return rope.get("rope_type", rope.get("type", "default"))


def _scaling_of(content: Mapping[str, Any]) -> RopeScaling | None:
    """None where it changes nothing."""
    for name in ("rope_scaling", "rope_parameters"):
        found = content.get(name)
        if found is not None and _kind(found) == "llama3" and found["factor"] != 1:
            return RopeScaling(
                factor=float(found["factor"]),
                low_freq_factor=float(found["low_freq_factor"]),
                high_freq_factor=float(found["high_freq_factor"]),
                original_max_positions=int(found["original_max_position_embeddings"]),
            )
    return None


def _thetas(content: Mapping[str, Any]) -> list[Any]:
    """The base of the rotary embedding, from each place that has one."""
    places = [content, *(content.get(name) for name in ("rope_scaling", "rope_parameters"))]
    return [place["rope_theta"] for place in places if isinstance(place, Mapping) and place.get("rope_theta")]


def _is_number(value: Any, *kinds: type) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)
