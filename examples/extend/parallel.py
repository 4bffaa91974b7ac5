"""A decoder of one's own: attention and feed-forward side by side, and no positions.

Both parts of a layer read the same norm and are added at once (arXiv:2204.02311, "parallel layers"); where a token
stands is left to the causal mask alone (arXiv:2305.19466); the feed-forward part is a squared ReLU (arXiv:2109.08668).
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from shardline.components.common.config.presets import ModelShape
from shardline.components.training.attention import Attend
from shardline.components.training.recompute import recomputed


class Layer(nn.Module):
    def __init__(self, shape: ModelShape, attend: Attend, recompute: str) -> None:
        super().__init__()
        self.attend, self.recompute, self.head_dim = attend, recompute, shape.head_dim
        self.widths = [width * shape.head_dim for width in (shape.heads, shape.kv_heads, shape.kv_heads)]
        self.norm = nn.RMSNorm(shape.dim, eps=shape.norm_eps)
        self.inputs = nn.Linear(shape.dim, sum(self.widths), bias=False)
        self.output = nn.Linear(shape.heads * shape.head_dim, shape.dim, bias=False)
        self.up = nn.Linear(shape.dim, shape.hidden, bias=False)
        self.down = nn.Linear(shape.hidden, shape.dim, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return recomputed(self.recompute, self._forward, x, mask)

    def _forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        read = self.norm(x)
        parts = self.inputs(read).split(self.widths, dim=-1)
        query, key, value = (part.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for part in parts)
        attended = self.attend(query, key, value, mask).transpose(1, 2).flatten(2)
        out: Tensor = x + self.output(attended) + self.down(F.relu(self.up(read)).square())
        return out


class Decoder(nn.Module):
    def __init__(self, shape: ModelShape, *, layers: range, attend: Attend, recompute: str) -> None:
        super().__init__()
        self.shape, self.attend = shape, attend
        first, last = 0 in layers, shape.layers - 1 in layers
        self.embedding = nn.Embedding(shape.vocab, shape.dim) if first else None
        self.layers = nn.ModuleDict({str(index): Layer(shape, attend, recompute) for index in layers})
        self.norm = nn.RMSNorm(shape.dim, eps=shape.norm_eps) if last else None
        self.head = nn.Linear(shape.dim, shape.vocab, bias=False) if last else None

    def forward(self, x: Tensor, positions: Tensor, documents: Tensor | None = None) -> Tensor:
        if self.embedding is not None:
            x = self.embedding(x)
        mask = self.attend.mask(documents)
        for layer in self.layers.values():
            x = layer(x, mask)
        return x if self.norm is None or self.head is None else self.head(self.norm(x))

    def initial_scale(self, name: str) -> float | None:
        if name.endswith("norm.weight"):
            return None
        fan_in = self.shape.hidden if name.endswith("down.weight") else self.shape.dim
        residual = name.endswith(("output.weight", "down.weight"))
        return float((fan_in * (2 * self.shape.layers if residual else 1)) ** -0.5)
