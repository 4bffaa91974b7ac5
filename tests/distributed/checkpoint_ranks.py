"""What ranks do in the tests of checkpoints: they meet a full disk, see other folders than their peers, or stop."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from shardline.components.common.errors import EnvironmentLacking, StorageLost
from shardline.components.common.storage import Storage
from shardline.components.common.workers import WorkerContext
from shardline.components.training import worker
from shardline.components.training.checkpoint import catalog, loading, saving
from shardline.components.training.checkpoint.saving import Contents, Saver

#: More than any stream's segment here, less than any rank's part of a checkpoint.
SMALL_DISK = 64 << 10
CONTENTS = Contents(
    step=1,
    state={"position": 0, "updates": 0, "tokens": 0},
    identity="i",
    identity_keys={},
    layout={},
)


def limit_files(size: int) -> None:
    """Let this process write no file larger than `size` bytes, as on a full disk."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))


@contextlib.contextmanager
def joined(context: WorkerContext) -> Iterator[None]:
    dist.init_process_group(
        backend="gloo", store=context.store, rank=context.rank, world_size=context.world, timeout=context.timeout
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def saver_of(context: WorkerContext, *, background: bool) -> Saver:
    # A tensor of its own for each rank, as pipeline stages have.
    mine = {f"model.{context.rank}": torch.full((1 << 15,), float(context.rank), dtype=torch.float64)}
    return Saver(context, tensors=lambda: mine, background=background)


def raise_alike(context: WorkerContext, *, background: bool) -> None:
    """Rank 1's disk is full: every rank raises that, and the next save is made."""
    with joined(context):
        saver = saver_of(context, background=background)
        if context.rank == 1:
            limit_files(SMALL_DISK)
        saver.start(CONTENTS)
        with pytest.raises(StorageLost, match="File too large"):
            saver.wait()
        if context.rank == 1:
            limit_files(resource.RLIM_INFINITY)
        saver.start(replace(CONTENTS, step=2))
        saver.wait()


def write_apart(context: WorkerContext, *, elsewhere: str) -> None:
    """Rank 1's run folder is another one than rank 0's."""
    with joined(context):
        if context.rank == 1:
            context = replace(context, run=Storage(elsewhere))
        saver = saver_of(context, background=True)
        saver.start(CONTENTS)
        with pytest.raises(EnvironmentLacking, match="rank 0 does not find what another rank has written"):
            saver.wait()


def save_well(context: WorkerContext) -> None:
    with joined(context):
        saver = saver_of(context, background=True)
        saver.start(CONTENTS)
        saver.wait()


def look_apart(context: WorkerContext, *, elsewhere: str) -> None:
    """Rank 1 sees nothing of what rank 0 sees."""
    with joined(context):
        if context.rank == 1:
            context = replace(context, run=Storage(elsewhere))
        with pytest.raises(EnvironmentLacking, match=r"rank 1 finds .* is missing, and rank 0 finds it whole"):
            loading.newest_sound(context, events=None)


def full_disk_at_first(context: WorkerContext, **arguments: Any) -> None:
    """Training in which rank 1's disk is full at the first save, and has room from the second on."""
    start, sizes = Saver.start, iter([SMALL_DISK])

    def limited(self: Saver, *args: Any, **options: Any) -> None:
        limit_files(next(sizes, resource.RLIM_INFINITY))
        start(self, *args, **options)

    if context.rank == 1:
        Saver.start = limited  # type: ignore[method-assign]
    try:
        worker.train(context, **arguments)
    finally:
        Saver.start = start  # type: ignore[method-assign]


def slow_storage(context: WorkerContext, *, seconds: float, **arguments: Any) -> None:
    """Training on storage that takes `seconds` for each file of a checkpoint."""
    write = saving.write_tensors

    def slow(*args: Any, **options: Any) -> Any:
        time.sleep(seconds)
        return write(*args, **options)

    saving.write_tensors = slow
    try:
        worker.train(context, **arguments)
    finally:
        saving.write_tensors = write


def stop_at(context: WorkerContext, *, moment: str, step: int, **arguments: Any) -> None:
    """Training whose rank 0 stops `before the check` or `after the check` of its lease, or is `killed` then."""
    commit = catalog.commit

    def stopping(run: Storage, record: catalog.CheckpointRecord, *, check: Callable[[], None]) -> None:
        stops = [moment] if record.step == step else []

        def checked() -> None:
            if stops == ["before the check"]:
                stop(stops)
            check()
            if stops == ["after the check"]:
                stop(stops)
            if stops == ["killed"]:
                os.kill(os.getpid(), signal.SIGKILL)

        commit(run, record, check=checked)

    def stop(stops: list[str]) -> None:
        stops.clear()
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(1)  # the signal is for all threads, and may reach this one a moment later

    catalog.commit = stopping
    worker.train(context, **arguments)
