"""Trained values for a model that is laid out: each rank reads its own slice of each parameter, and nothing else.

Called by the worker when a run begins. The counterpart of `initial`, with the same view of what a rank holds.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from shardline.components.common.errors import DamagedData
from shardline.components.common.huggingface.names import exported_name
from shardline.components.common.huggingface.weights import Weights
from shardline.components.training.checkpoint.index import SAFETENSORS_DTYPES
from shardline.components.training.initial import local_slice

_DTYPES = {name: dtype for dtype, name in SAFETENSORS_DTYPES.items()}
_CHUNK = 64 << 20  # bytes held at once, beside the parameters themselves


def fill(parameters: Iterable[tuple[str, nn.Parameter]], *, weights: Weights) -> int:
    """Give `parameters`, by our names, the values that `weights` has for them; returns the bytes that were read.

    Values are converted to a parameter's own type.

    Raises:
        DamagedData: a file ends before its header says, or a value is not finite.
    """
    read = 0
    with torch.no_grad():
        for name, parameter in parameters:
            local, offsets = local_slice(parameter)
            read += _fill(local, offsets, exported_name(name), weights)
    return read


def _fill(local: Tensor, offsets: tuple[int, ...], name: str, weights: Weights) -> int:
    place = weights.tensors[name]
    if local.numel() == 0:
        return 0
    row = place.bytes // place.shape[0]
    at_once = max(1, _CHUNK // row)
    for start in range(0, local.shape[0], at_once):
        count = min(at_once, local.shape[0] - start)
        data = weights.rows(name, first=offsets[0] + start, count=count)
        rows = torch.frombuffer(bytearray(data), dtype=_DTYPES[place.dtype]).view(count, *place.shape[1:])
        for dimension in range(1, local.dim()):
            rows = rows.narrow(dimension, offsets[dimension], local.shape[dimension])
        if not rows.isfinite().all():
            raise DamagedData(f"{name} has values that are not finite", where=weights.folder.url_of(place.file))
        local[start : start + count].copy_(rows)
    return local.shape[0] * row
