"""Computing activations again in the backward pass instead of keeping them.

Called by the model's layers, each for itself: what is hooked onto a layer, such as its sharding, then runs once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

#: Operations whose results selective recomputation keeps: matrix products and attention, which cost the most by far.
_KEPT = {
    torch.ops.aten.mm.default,
    torch.ops.aten._scaled_mm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
}


def recomputed(kind: str, function: Callable[..., Tensor], *inputs: Any) -> Tensor:
    """`function(*inputs)`, keeping for the backward pass everything (`none`), what `_KEPT` gives (`selective`) or
    nothing but the inputs (`full`)."""
    if kind == "none" or not torch.is_grad_enabled():
        return function(*inputs)
    options: dict[str, Any] = {"context_fn": _keep_products} if kind == "selective" else {}
    # The model has no random numbers, so there is no state of theirs to bring back.
    out: Tensor = checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False, **options)
    return out


def _policy(context: Any, operation: Any, *_: Any, **__: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE


_keep_products = partial(create_selective_checkpoint_contexts, _policy)
