"""What each rank writes when a run is saved: planned once for a session, by torch's distributed checkpoint.

Called by `saving`. The planner knows which box of which tensor every rank holds, and gives each box to one rank. From
that the whole file of every rank follows, but for the values: its header, where each tensor lies, and the index.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan as TorchPlan
from torch.distributed.checkpoint.planner import WriteItem

from shardline.components.training.checkpoint.index import SAFETENSORS_DTYPES, Place, encode


@dataclass(frozen=True, kw_only=True)
class SavePlan:
    """What this rank writes.

    Attributes:
        file: the name of its safetensors file.
        header: the file's beginning, from its first byte to the first tensor's.
        names: the tensors whose local values follow, in order; none when other ranks write all of it.
        index_file: the name of the index.
        index: its content, on rank 0; None elsewhere.
    """

    file: str
    header: bytes
    names: list[str]
    index_file: str
    index: bytes | None


def plan_save(tensors: Mapping[str, Tensor], *, prefix: str, rank: int, world: int) -> SavePlan:
    """Plan with all ranks, which call it together; with a world of 1 no process group is needed.

    Args:
        prefix: what the files' names begin with.

    Raises:
        TypeError: something else than tensors is in `tensors`.
    """
    strangers = [name for name, value in tensors.items() if not isinstance(value, Tensor)]
    if strangers:
        raise TypeError(f"only tensors go into a checkpoint; not {', '.join(strangers)}")
    planner = DefaultSavePlanner()
    planner.set_up_planner(dict(tensors), is_coordinator=rank == 0)
    mine = planner.create_local_plan()
    gathered = _gather(mine, rank=rank, world=world)
    index, plans = None, None
    if gathered is not None:
        plans, metadata = planner.create_global_plan(gathered)
        places: dict[MetadataIndex, Place] = {}
        for number, plan in enumerate(plans):
            places.update(places_of(plan.items, file_name(prefix, number)))
        index = encode(metadata, places)
    items = planner.finish_plan(_scatter(plans, world=world)).items
    return SavePlan(
        file=file_name(prefix, rank),
        header=header_of(items)[0],
        names=[item.index.fqn for item in items],
        index_file=index_name(prefix),
        index=index,
    )


def _gather(plan: TorchPlan, *, rank: int, world: int) -> list[TorchPlan] | None:
    if world == 1:
        return [plan]
    plans: list[Any] | None = [None] * world if rank == 0 else None
    dist.gather_object(plan, plans, dst=0)
    return plans


def _scatter(plans: list[TorchPlan] | None, *, world: int) -> TorchPlan:
    if world == 1 and plans is not None:
        return plans[0]
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, plans, src=0)
    plan: TorchPlan = mine[0]
    return plan


def file_name(prefix: str, number: int) -> str:
    return f"{prefix}-{number:05d}.safetensors"


def index_name(prefix: str) -> str:
    return f"{prefix}-index.json"


def places_of(items: list[WriteItem], file: str) -> dict[MetadataIndex, Place]:
    """Where the chunks of `items` lie in the `file` that holds them, in this order, after `header_of` them."""
    header, ends = header_of(items)
    first = len(header)
    begins = [0, *ends[:-1]]
    return {
        MetadataIndex(item.index.fqn, item.index.offset): Place(file, first + begin, end - begin)
        for item, begin, end in zip(items, begins, ends, strict=True)
    }


def header_of(items: list[WriteItem]) -> tuple[bytes, list[int]]:
    """The beginning of a safetensors file with the chunks of `items`, and where each one's data ends after it."""
    entries: dict[str, Any] = {}
    ends: list[int] = []
    end = 0
    for item in items:
        if item.tensor_data is None:
            raise TypeError(f"{item.index.fqn} is not a tensor; checkpoints hold tensors only")
        dtype, sizes = item.tensor_data.properties.dtype, item.tensor_data.chunk.sizes
        begin, end = end, end + prod(sizes) * dtype.itemsize
        place = ",".join(str(offset) for offset in item.tensor_data.chunk.offsets)
        entries[f"{item.index.fqn}@{place}"] = {
            "dtype": SAFETENSORS_DTYPES[dtype],
            "shape": list(sizes),
            "data_offsets": [begin, end],
        }
        ends.append(end)
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header, ends
