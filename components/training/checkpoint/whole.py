"""What is in a checkpoint, all of it or piece by piece, in one process and without a process group.

Called by the export, by text generation and by `shardline checkpoint convert`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from shardline.components.common.config.presets import ModelShape
from shardline.components.common.errors import DamagedData
from shardline.components.common.storage import Storage
from shardline.components.training.attention import WholeSamples
from shardline.components.training.checkpoint import catalog, loading
from shardline.components.training.checkpoint.catalog import CheckpointRecord
from shardline.components.training.checkpoint.store import Reader, check_shapes, gone
from shardline.components.training.classes import model_class

#: Bytes that are read at once.
_BLOCK = 16 << 20


def load_model(
    run: Storage,
    record: CheckpointRecord,
    shape: ModelShape,
    *,
    named: str | None = None,
    dtype: torch.dtype = torch.float32,
) -> nn.Module:
    """The model of `record`, on the CPU, every file's hash verified.

    Args:
        named: the class of a model of one's own, as the config names it.

    Raises:
        DamagedData: a file is not what was written.
        UserError: it is a model of another shape, or there is no such class.
    """
    _verify(run, record)
    with torch.device("meta"):
        build = model_class(named)
        model = build(shape, layers=range(shape.layers), attend=WholeSamples(), recompute="none").to(dtype)
    model.to_empty(device="cpu")
    loading.load(
        {f"model.{name}": parameter for name, parameter in model.named_parameters()},
        folder=run.at(record.folder),
        record=record,
    )
    return model.eval()


class Stored:
    """The tensors of a checkpoint whose names begin with `prefix`, under their names without it, read piece by piece.

    Every file's hash is verified first. What is held at once does not depend on the model's size.

    Attributes:
        shapes: of each tensor, in the order of their names.

    Raises:
        DamagedData: a file is not what was written.
    """

    def __init__(self, run: Storage, record: CheckpointRecord, *, prefix: str) -> None:
        _verify(run, record)
        self._prefix, self._url = prefix, run.url_of(record.folder)
        folder = run.at(record.folder)
        try:
            data = folder.read(record.index)
        except FileNotFoundError as error:
            raise gone(folder.url_of(record.index)) from error
        self._reader = Reader(folder, index=record.index, data=data, files=record.files)
        described: dict[str, Any] = dict(self._reader.read_metadata().state_dict_metadata)
        found = {name.removeprefix(prefix): each for name, each in sorted(described.items()) if name.startswith(prefix)}
        self.shapes: dict[str, tuple[int, ...]] = {name: tuple(each.size) for name, each in found.items()}
        self._dtypes: dict[str, torch.dtype] = {name: each.properties.dtype for name, each in found.items()}

    def expect(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Go on with these alone, in their order.

        Raises:
            UserError: one of them is not there, or of another shape.
        """
        check_shapes(shapes, self.shapes, where=self._url)
        self.shapes = dict(shapes)

    def dtype(self, name: str) -> torch.dtype:
        return self._dtypes[name]

    def blocks(self, name: str) -> Iterator[Tensor]:
        """The values of a tensor in order, some of its rows at a time."""
        shape = self.shapes[name]
        rows = shape[0] if shape else 1
        at_once = max(1, _BLOCK // max(1, prod(shape[1:]) * self._dtypes[name].itemsize))
        for first in range(0, rows, at_once):
            yield self._reader.rows(self._prefix + name, first=first, count=min(at_once, rows - first))


def _verify(run: Storage, record: CheckpointRecord) -> None:
    problem = catalog.damage(run, record)
    if problem is not None:
        raise DamagedData(problem.reason, hint="take another checkpoint, or train on: the one before is used")
