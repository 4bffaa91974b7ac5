"""A Llama-style decoder that can be built whole or as one stage of a pipeline.

Called by `parallel` (stages on the meta device), by `checkpoint.whole` and by the export. Parameter names are those of
the whole model in every stage, as layers are kept under their number: a checkpoint has no trace of the layout.

Architecture: pre-normalisation with RMSNorm (arXiv:1910.07467), rotary position embedding (arXiv:2104.09864) in the
half-rotation form of Hugging Face's Llama, grouped-query attention (arXiv:2305.13245), SwiGLU (arXiv:2002.05202).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shardline.components.common.config.presets import ModelShape


class Attention(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = shape.heads, shape.kv_heads, shape.head_dim
        self.query = nn.Linear(shape.dim, shape.heads * shape.head_dim, bias=False)
        self.key = nn.Linear(shape.dim, shape.kv_heads * shape.head_dim, bias=False)
        self.value = nn.Linear(shape.dim, shape.kv_heads * shape.head_dim, bias=False)
        self.output = nn.Linear(shape.heads * shape.head_dim, shape.dim, bias=False)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        batch, length, _ = x.shape
        query = self.query(x).view(batch, length, self.heads, self.head_dim).transpose(1, 2)
        key = self.key(x).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        value = self.value(x).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        query, key = rotate(query, rotation), rotate(key, rotation)
        attended = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None, enable_gqa=self.heads != self.kv_heads
        )
        merged: Tensor = self.output(attended.transpose(1, 2).reshape(batch, length, -1))
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
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.dim, eps=shape.norm_eps)
        self.attention = Attention(shape)
        self.feed_forward_norm = nn.RMSNorm(shape.dim, eps=shape.norm_eps)
        self.feed_forward = FeedForward(shape)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotation, mask)
        out: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return out


class Transformer(nn.Module):
    """The decoder, or the part of it that is one pipeline stage.

    Args:
        shape: sizes of the whole model.
        layers: the layers that this stage holds; all of them unless given. The stage with the first layer also holds
            the embedding, the one with the last layer the final norm and the output head.
    """

    def __init__(self, shape: ModelShape, *, layers: range | None = None) -> None:
        super().__init__()
        held = range(shape.layers) if layers is None else layers
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocab, shape.dim) if 0 in held else None
        self.layers = nn.ModuleDict({str(index): Layer(shape) for index in held})
        last = shape.layers - 1 in held
        self.norm = nn.RMSNorm(shape.dim, eps=shape.norm_eps) if last else None
        self.head = nn.Linear(shape.dim, shape.vocab, bias=False) if last else None

    def forward(self, x: Tensor, positions: Tensor, documents: Tensor | None = None) -> Tensor:
        """One stage's part.

        Args:
            x: int64[batch, length] token ids for the first stage, else [batch, length, dim] hidden states.
            positions: int64[batch, length], each token's place in its document.
            documents: int32[batch, length], equal for tokens that may see each other; None for plain causal attention.

        Returns:
            [batch, length, vocab] logits from the last stage, else [batch, length, dim].
        """
        if self.embedding is not None:
            x = self.embedding(x)
        rotation = rotation_of(positions, self.shape, dtype=x.dtype)
        mask = None if documents is None else document_mask(documents)
        for layer in self.layers.values():
            x = layer(x, rotation, mask)
        if self.norm is not None and self.head is not None:
            x = self.head(self.norm(x))
        return x


def rotation_of(positions: Tensor, shape: ModelShape, *, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines, each [batch, 1, length, head_dim], of the rotary embedding at `positions`."""
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    half = torch.arange(0, shape.head_dim, 2, device=positions.device, dtype=exact) / shape.head_dim
    angles = positions.to(exact).unsqueeze(-1) * shape.rope_theta**-half
    angles = torch.cat((angles, angles), dim=-1).unsqueeze(1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    cosine, sine = rotation
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-second, first), dim=-1) * sine


def document_mask(documents: Tensor) -> Tensor:
    """bool[batch, 1, length, length]: whether a token (row) sees another (column), earlier and of its document."""
    length = documents.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=documents.device).tril()
    same = documents.unsqueeze(2) == documents.unsqueeze(1)
    return (same & causal).unsqueeze(1)
