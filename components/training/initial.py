"""The model's initial values: a function of (seed, parameter name, place in the whole parameter).

Called once a model is laid out and its memory is there. Each rank fills its own slice, whatever the layout; the cost
follows the local parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from shardline.components.training.counter import key_of, normal

_CHUNK = 1 << 20  # elements drawn at once: bounds the memory for the intermediate 64-bit words


def initialise(model: nn.Module, *, seed: int) -> None:
    """Fill every parameter of `model`, a stage or the whole of a `classes.Model`, in place."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = model.initial_scale(name)  # type: ignore[operator]
            local, offsets = local_slice(parameter)
            if scale is None:
                local.fill_(1.0)
            else:
                _fill_normal(local, offsets, tuple(parameter.shape), key_of(seed, name), scale)


def local_slice(parameter: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """This rank's part of a parameter, and where it begins in each dimension of the whole."""
    if not isinstance(parameter, DTensor):
        return parameter, (0,) * parameter.dim()
    _, offsets = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
    return parameter.to_local(), tuple(offsets)


def _fill_normal(
    local: Tensor, offsets: tuple[int, ...], whole: tuple[int, ...], key: tuple[int, int], scale: float
) -> None:
    rows_at_once = max(1, _CHUNK // max(1, local[:1].numel()))
    row_stride = 1
    inside = torch.zeros(local.shape[1:], dtype=torch.int64, device=local.device)
    for dimension in range(len(whole) - 1, 0, -1):
        place = torch.arange(local.shape[dimension], device=local.device) + offsets[dimension]
        inside += (place * row_stride).view(-1, *[1] * (len(whole) - 1 - dimension))
        row_stride *= whole[dimension]
    for start in range(0, local.shape[0], rows_at_once):
        rows = local[start : start + rows_at_once]
        first = torch.arange(start, start + rows.shape[0], device=local.device) + offsets[0]
        index = first.view(-1, *[1] * (len(whole) - 1)) * row_stride + inside
        rows.copy_(normal(index, key) * scale)
