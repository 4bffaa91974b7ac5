"""Runs a worker function in a group of real processes over gloo, as an agent would.

A fork server with torch already imported makes a group of processes cheap: tenths of a second instead of seconds.
"""

from __future__ import annotations

import faulthandler
import importlib
import multiprocessing
import os
import time
import traceback
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

from torch.distributed import PrefixStore, TCPStore

from shardline.components.common.storage import Storage
from shardline.components.common.workers import WorkerContext

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "torch.distributed.checkpoint", "shardline.components.training.worker"])
_SILENCE = timedelta(seconds=60)


def run_group(
    entry: str, *, world: int, run: Storage, generation: int, fence: int, runs: int = 1, **arguments: Any
) -> None:
    """Call `entry` ("module:function") as each of `world` ranks and wait for them all.

    Args:
        runs: how many runs the workers do one after the other, each of which may take its time.

    Raises:
        AssertionError: a rank failed (with its traceback), or the group did not end in time.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    workers = []
    for rank in range(world):
        receiver, sender = _context.Pipe(duplex=False)
        place = {"generation": generation, "rank": rank, "world": world, "run": run.url, "fence": fence}
        process = _context.Process(target=_work, args=(entry, place, store.port, arguments, sender), daemon=True)
        process.start()
        sender.close()
        workers.append((process, receiver))
    failures = []
    deadline = time.monotonic() + (1 + runs) * _SILENCE.total_seconds()
    for rank, (process, receiver) in enumerate(workers):
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            failures.append(f"rank {rank} did not end")
        elif process.exitcode:
            failures.append(f"rank {rank} ended with {process.exitcode}:\n{_last_words(receiver)}")
    assert not failures, "\n".join(failures)


def _last_words(receiver: Connection) -> str:
    try:
        return str(receiver.recv()) if receiver.poll() else "(nothing)"
    except EOFError:
        return "(nothing)"


def _work(entry: str, place: dict[str, Any], port: int, arguments: dict[str, Any], sender: Connection) -> None:
    import torch

    faulthandler.enable()
    torch.set_num_threads(1)
    context = WorkerContext(
        generation=place["generation"],
        rank=place["rank"],
        world=place["world"],
        local_rank=place["rank"],
        store=PrefixStore(str(place["generation"]), TCPStore("127.0.0.1", port, is_master=False)),
        run=Storage(place["run"]),
        fence=place["fence"],
        timeout=_SILENCE,
    )
    module, _, function = entry.partition(":")
    try:
        getattr(importlib.import_module(module), function)(context, **arguments)
    except BaseException:
        sender.send(traceback.format_exc())
        # Some threads of torch would keep a failed process; the parent has what it needs.
        os._exit(1)
