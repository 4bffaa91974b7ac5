"""A Llama-style decoder that can be built whole or as one stage of a pipeline.

Called by `parallel` (stages on the meta device), by `checkpoint.whole` and by the export. Parameter names are those of
the whole model in every stage, as layers are kept under their number: a checkpoint has no trace of the layout.

Architecture: pre-normalisation with RMSNorm (arXiv:1910.07467), rotary position embedding (arXiv:2104.09864) in the
half-rotation form of Hugging Face's Llama, grouped-query attention (arXiv:2305.13245), SwiGLU (arXiv:2002.05202).
Tied embeddings (arXiv:1608.05859) are one parameter; where the first and the last stage are apart each has a copy,
under the same name, which `tied` keeps equal.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shardline.components.common.config.presets import ModelShape
from shardline.components.training.attention import Attend, WholeSamples
from shardline.components.training.recompute import recomputed


class Attention(nn.Module):
    def __init__(self, shape: ModelShape, attend: Attend) -> None:
        super().__init__()
        self.head_dim, self.attend = shape.head_dim, attend
        self.query = nn.Linear(shape.dim, shape.heads * shape.head_dim, bias=False)
        self.key = nn.Linear(shape.dim, shape.kv_heads * shape.head_dim, bias=False)
        self.value = nn.Linear(shape.dim, shape.kv_heads * shape.head_dim, bias=False)
        self.output = nn.Linear(shape.heads * shape.head_dim, shape.dim, bias=False)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        # As many heads as there are: with tensor parallelism a rank computes some of them.
        query = self.query(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        key = self.key(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        value = self.value(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        attended = self.attend(rotate(query, rotation), rotate(key, rotation), value, mask)
        merged: Tensor = self.output(attended.transpose(1, 2).flatten(2))
        return merged


class FeedForward(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.dim, shape.hidden, bias=False)
        self.up = nn.Linear(shape.dim, shape.hidden, bias=False)
        self.down = nn.Linear(shape.hidden, shape.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out


class Layer(nn.Module):
    def __init__(self, shape: ModelShape, attend: Attend, recompute: str) -> None:
        super().__init__()
        self.recompute = recompute
        self.attention_norm = nn.RMSNorm(shape.dim, eps=shape.norm_eps)
        self.attention = Attention(shape, attend)
        self.feed_forward_norm = nn.RMSNorm(shape.dim, eps=shape.norm_eps)
        self.feed_forward = FeedForward(shape)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        return recomputed(self.recompute, self._forward, x, rotation, mask)

    def _forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotation, mask)
        out: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return out


class TiedHead(nn.Module):
    """An output head whose weight is the embedding's: a module, as what tensor parallelism shares is modules."""

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.linear(x, weight)


class Transformer(nn.Module):
    """The decoder, or the part of it that is one pipeline stage.

    Args:
        shape: sizes of the whole model.
        layers: the layers that this stage holds; all of them unless given. The stage with the first layer also holds
            the embedding, the one with the last layer the final norm and the output head, or the embedding as that.
        attend: how tokens attend to each other; samples are whole unless given.
        recompute: which activations the backward pass computes again: none, selective (all but the results of matrix
            products and attention) or full.
    """

    def __init__(
        self,
        shape: ModelShape,
        *,
        layers: range | None = None,
        attend: Attend | None = None,
        recompute: str = "none",
    ) -> None:
        super().__init__()
        held = range(shape.layers) if layers is None else layers
        first, last = 0 in held, shape.layers - 1 in held
        self.shape = shape
        self.is_first = first
        self.embedding = nn.Embedding(shape.vocab, shape.dim) if first or (last and shape.tied) else None
        self.attend = attend or WholeSamples()
        self.layers = nn.ModuleDict({str(index): Layer(shape, self.attend, recompute) for index in held})
        self.norm = nn.RMSNorm(shape.dim, eps=shape.norm_eps) if last else None
        head = TiedHead() if shape.tied else nn.Linear(shape.dim, shape.vocab, bias=False)
        self.head = head if last else None

    def initial_scale(self, name: str) -> float | None:
        """The standard deviation of a parameter's initial values; None for a norm, which starts at one.

        Fan-in scaling, and the outputs of residual branches are damped by their number (GPT-2, Radford et al. 2019).
        """
        shape = self.shape
        if name.endswith("norm.weight"):
            return None
        if name == "embedding.weight":
            return 0.02 if shape.dim >= 1024 else float(shape.dim**-0.5)
        fan_in = shape.hidden if name.endswith("down.weight") else shape.dim
        scale = float(fan_in**-0.5)
        return scale * float((2 * shape.layers) ** -0.5) if name.endswith(("output.weight", "down.weight")) else scale

    def forward(self, x: Tensor, positions: Tensor, documents: Tensor | None = None) -> Tensor:
        """One stage's part.

        Args:
            x: int64[batch, length] token ids for the first stage, else [batch, length, dim] hidden states.
            positions: int64[batch, length], each token's place in its document.
            documents: int32[batch, length of whole samples], equal for tokens that may see each other; None for plain
                causal attention.

        Returns:
            [batch, length, vocab] logits from the last stage, else [batch, length, dim].
        """
        if self.is_first and self.embedding is not None:
            x = self.embedding(x)
        rotation = rotation_of(positions, self.shape, dtype=x.dtype)
        mask = self.attend.mask(documents)
        for layer in self.layers.values():
            x = layer(x, rotation, mask)
        if self.norm is not None:
            x = self.norm(x)
        if isinstance(self.head, TiedHead) and self.embedding is not None:
            x = self.head(x, self.embedding.weight)
        elif self.head is not None:
            x = self.head(x)
        return x


def frequencies(shape: ModelShape, *, dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """The angle by which a position turns each pair of a head, in radians: [head_dim / 2], in `dtype`.

    With `rope_scaling`, a frequency that makes fewer turns than `low_freq_factor` within the original context is
    divided by `factor`, one of more than `high_freq_factor` is left alone, and in between it is a mean of both by where
    it lies (Llama 3.1, arXiv:2407.21783; the formula is that of Meta's reference code, `apply_scaling`).
    """
    plain = shape.rope_theta ** -(torch.arange(0, shape.head_dim, 2, device=device, dtype=dtype) / shape.head_dim)
    scaling = shape.rope_scaling
    if scaling is None:
        return plain
    turns = scaling.original_max_positions * plain / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - kept) * plain / scaling.factor + kept * plain


def rotation_of(positions: Tensor, shape: ModelShape, *, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines, each [batch, 1, length, head_dim], of the rotary embedding at `positions`."""
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    angles = positions.to(exact).unsqueeze(-1) * frequencies(shape, dtype=exact, device=positions.device)
    angles = torch.cat((angles, angles), dim=-1).unsqueeze(1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    cosine, sine = rotation
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-second, first), dim=-1) * sine
