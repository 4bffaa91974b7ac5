"""The worker's memory: when Python's garbage is collected, and how much was used at most.

Called by `worker` and `recorder`. Python collects garbage when it likes, for tens of milliseconds, and while one rank
does so all wait for it; here all ranks collect after the same steps, as torchtitan does.
"""

from __future__ import annotations

import gc
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist


class Collection:
    """Garbage is collected where `after_step` says so, and not otherwise."""

    def __init__(self, every: int) -> None:
        self._every = every

    def after_step(self, step: int) -> None:
        if (step + 1) % self._every == 0:
            gc.collect()


@contextmanager
def collected(*, every: int) -> Iterator[Collection]:
    """Collect garbage every so many optimizer steps, for the length of the block; what is there now stays."""
    automatic = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield Collection(every)
    finally:
        if automatic:
            gc.enable()


def held(device: torch.device) -> dict[str, int]:
    """The most bytes that this process had, as fields of `Vitals`. For any thread; the device is not waited for."""
    # Linux counts in KiB, macOS in bytes.
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    if device.type != "cuda":
        return {"host_bytes": host}
    return {
        "host_bytes": host,
        "device_bytes": torch.cuda.max_memory_allocated(device),
        "device_limit": torch.cuda.get_device_properties(device).total_memory,
    }


def peaks(device: torch.device) -> list[dict[str, int]]:
    """For each rank the most bytes it had: `host`, resident, and `device`, allocated (0 without one). Collective."""
    own = held(device)
    mine = torch.tensor([own["host_bytes"], own.get("device_bytes", 0)], device=device)
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    return [{"host": int(rank[0]), "device": int(rank[1])} for rank in everyone]
