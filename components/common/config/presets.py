"""The shapes of models: a handful of published ones and small ones for a laptop.

`llama3-8b`, `-70b` and `-405b` are the shapes of "The Llama 3 Herd of Models" (arXiv:2407.21783, table 3); the smaller
ones follow the same proportions.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """How Llama 3.1 stretches its rotary embedding to longer contexts: see `training.model.frequencies`.

    Attributes:
        factor: what the lowest frequencies are divided by.
        low_freq_factor, high_freq_factor: of how many turns within `original_max_positions` the ramp from divided to
            untouched frequencies begins and ends.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A decoder's sizes, and what else is needed to compute it.

    Attributes:
        heads: query heads; `kv_heads` of keys and values are shared among them.
        hidden: the width of the feed-forward layer.
        head_width: of one head, where that is not dim / heads.
        rope_scaling: None for the plain rotary embedding.
        tied: whether the output head is the embedding.
    """

    layers: int
    dim: int
    heads: int
    kv_heads: int
    hidden: int
    vocab: int
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    max_positions: int = 2048
    head_width: int | None = None
    rope_scaling: RopeScaling | None = None
    tied: bool = False

    @property
    def head_dim(self) -> int:
        return self.head_width or self.dim // self.heads

    @property
    def block_parameters(self) -> int:
        """Parameters of one decoder layer."""
        attention = self.dim * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return attention + 3 * self.dim * self.hidden + 2 * self.dim

    @property
    def parameters(self) -> int:
        """Parameters of the whole model; tied embeddings count once."""
        return self.layers * self.block_parameters + (1 if self.tied else 2) * self.vocab * self.dim + self.dim


def _shape(layers: int, dim: int, heads: int, kv_heads: int, hidden: int, positions: int, theta: float) -> ModelShape:
    return ModelShape(
        layers=layers,
        dim=dim,
        heads=heads,
        kv_heads=kv_heads,
        hidden=hidden,
        vocab=0,
        rope_theta=theta,
        max_positions=positions,
    )


#: `vocab` is 0 here: it comes from the tokenizer unless the config sets it.
PRESETS: dict[str, ModelShape] = {
    "tiny": _shape(4, 128, 4, 2, 384, 2048, 10_000.0),
    "small": _shape(6, 256, 8, 4, 768, 2048, 10_000.0),
    "125m": _shape(12, 768, 12, 4, 2048, 4096, 10_000.0),
    "1b": _shape(16, 2048, 32, 8, 8192, 8192, 500_000.0),
    "llama3-8b": _shape(32, 4096, 32, 8, 14336, 8192, 500_000.0),
    "llama3-70b": _shape(80, 8192, 64, 8, 28672, 8192, 500_000.0),
    "llama3-405b": _shape(126, 16384, 128, 8, 53248, 8192, 500_000.0),
}
