"""Tensors that may be spread over ranks: this rank's part, and the whole. Called by the modules of training."""

from __future__ import annotations

from torch import Tensor
from torch.distributed.tensor import DTensor


def local_of(tensor: Tensor) -> Tensor:
    """The values of `tensor` that this rank holds, in the same memory."""
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


def whole_of(tensor: Tensor) -> Tensor:
    """All values of `tensor`. Collective over the ranks that hold parts of it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
