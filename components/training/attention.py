"""How queries meet keys and values: the seam behind which a sample's tokens may lie on one rank or on several.

Called by `model.Attention`, which knows nothing of ranks; `context` has the form for context parallelism.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F


class Attend(Protocol):
    """Causal attention within documents."""

    def mask(self, documents: Tensor | None) -> Tensor | None:
        """What `__call__` needs to know of `documents`, made once for all layers of a stage.

        Args:
            documents: int32[batch, length] over whole samples, equal for tokens that may see each other; None if all
                may.
        """
        ...

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """What each token gathers: [batch, heads, tokens, head_dim], as `query`.

        Args:
            key, value: [batch, kv_heads, tokens, head_dim]; each of them serves heads / kv_heads queries.
        """
        ...


class WholeSamples:
    """Every token of a sample is here."""

    def mask(self, documents: Tensor | None) -> Tensor | None:
        return None if documents is None else document_mask(documents)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            is_causal=mask is None,
            enable_gqa=query.shape[1] != key.shape[1],
        )


def document_mask(documents: Tensor) -> Tensor:
    """bool[batch, 1, length, length]: whether a token (row) sees another (column), earlier and of its document."""
    length = documents.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=documents.device).tril()
    same = documents.unsqueeze(2) == documents.unsqueeze(1)
    return (same & causal).unsqueeze(1)
