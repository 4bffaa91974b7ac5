"""The loader's samples as other libraries take them: a `torch.utils.data` data set, a `tf.data` one.

For training loops that are not ours. The samples, and their order, are those of `Loader`, which reads ahead in threads:
worker processes would only copy what it has. Each library is imported when its adapter is asked for.

Errors: `EnvironmentLacking` where the library is not installed, `UserError` for worker processes; else the loader's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shardline.components.common.errors import EnvironmentLacking, UserError
from shardline.components.sharding.batch import Batch
from shardline.components.sharding.dataset import Split
from shardline.components.sharding.loader import Loader
from shardline.components.sharding.order import SampleOrder

if TYPE_CHECKING:
    import torch

COLUMNS = ("tokens", "targets", "positions", "documents", "loss_mask", "loss_weights", "samples", "index", "bytes")


@dataclass(frozen=True, kw_only=True)
class RankSamples:
    """What a data-parallel rank reads: the arguments of `Loader`, and how many optimizer steps there are of it.

    Iterated, it gives the batches one by one, as mappings of numpy arrays by the names in `COLUMNS`.
    """

    split: Split
    order: SampleOrder
    microbatch: int
    dp_rank: int = 0
    dp_size: int = 1
    position: int = 0
    steps: int

    def batches(self) -> Iterator[Batch]:
        with Loader(
            self.split,
            order=self.order,
            microbatch=self.microbatch,
            dp_rank=self.dp_rank,
            dp_size=self.dp_size,
            position=self.position,
        ) as loader:
            for _ in range(self.steps):
                yield from next(loader)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return ({name: getattr(batch, name) for name in COLUMNS} for batch in self.batches())


def torch_dataset(samples: RankSamples) -> torch.utils.data.IterableDataset[dict[str, torch.Tensor]]:
    """`samples` as tensors, for a `DataLoader(..., batch_size=None)` without worker processes."""
    try:
        import torch
        from torch.utils.data import IterableDataset, get_worker_info
    except ImportError as error:
        raise _lacking("torch", error) from error

    class Tensors(IterableDataset[dict[str, torch.Tensor]]):
        def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
            if get_worker_info() is not None:
                raise UserError(
                    "the loader reads ahead in threads, and each worker process would read all of it",
                    where="DataLoader",
                    hint="set num_workers to 0",
                )
            for columns in samples:
                # A copy: tensors over the loader's own memory would change what others still read.
                yield {name: torch.from_numpy(np.array(column)) for name, column in columns.items()}

    return Tensors()


def tensorflow_dataset(samples: RankSamples) -> Any:
    """`samples` as a `tf.data.Dataset` of mappings."""
    try:
        import tensorflow as tf
    except ImportError as error:
        raise _lacking("tensorflow", error) from error

    kinds = {"documents": tf.int32, "loss_mask": tf.bool, "loss_weights": tf.float32, "bytes": tf.int32}
    flat = {"samples", "index", "bytes"}
    signature = {
        name: tf.TensorSpec(
            [samples.microbatch] if name in flat else [samples.microbatch, None], kinds.get(name, tf.int64)
        )
        for name in COLUMNS
    }
    generate: Callable[[], Iterator[dict[str, Any]]] = samples.__iter__
    return tf.data.Dataset.from_generator(generate, output_signature=signature)


def _lacking(package: str, error: ImportError) -> EnvironmentLacking:
    hint = f"pip install 'shardline[{package}]'" if package == "tensorflow" else f"pip install {package}"
    return EnvironmentLacking(str(error), where=f"the {package} adapter", hint=hint)
