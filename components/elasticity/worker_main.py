"""A worker process: from the description that the agent gives it to the worker function and its exit code.

This is the one place that reads a rank from the environment. Output goes to `logs/{generation}/{rank}.log` in the run
folder; where native code ends the process, the line of Python that each thread was at is the last of it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import sys
import traceback
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from shardline.components.common.errors import EnvironmentLacking, ShardlineError, exit_code_of
from shardline.components.common.processes import die_with_parent, raise_on_signals
from shardline.components.common.storage import Storage
from shardline.components.common.workers import Job, WorkerContext
from shardline.components.elasticity import logs

_TORCH = "2.13"


def describe(job: Job, *, generation: int, world: int, run: Storage, fence: int, timeout: int) -> dict[str, Any]:
    """What a worker of `job` is told.

    An agent adds `threads`, those of each of its workers, and where it has some, `memory` and a folder for `logs`; the
    leader the `snapshot` to go on from.
    """
    return {
        "entry": job.entry,
        "arguments": job.arguments(generation, world),
        "generation": generation,
        "run": run.url,
        "fence": fence,
        "timeout": timeout,
    }


def main(job: dict[str, Any]) -> int:
    """Be the worker that `job` describes, see `describe`; the exit code."""
    # An agent that dies before the worker has begun must not leave it behind.
    die_with_parent()
    import torch

    from shardline.components.elasticity.failures import classify, leave_record

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(job["threads"])
    rank = int(os.environ["RANK"])
    run = Storage(job["run"])
    with _logging(run, within=job["logs"], generation=int(job["generation"]), rank=rank):
        try:
            faulthandler.enable()
            raise_on_signals()
            _check_version(torch.__version__)
            context = _context(job, run=run, rank=rank)
            module, _, function = job["entry"].partition(":")
            getattr(importlib.import_module(module), function)(context, **job["arguments"])
        except BaseException as error:
            classified = classify(error)
            traceback.print_exception(error)
            with contextlib.suppress(ShardlineError):
                leave_record(run, classified, generation=job["generation"], rank=rank)
            return exit_code_of(classified)
    return 0


def _check_version(version: str) -> None:
    """Raises EnvironmentLacking for another torch than the code is written for."""
    if not version.startswith(f"{_TORCH}."):
        raise EnvironmentLacking(
            f"torch {version} is installed; training relies on private parts of torch {_TORCH}",
            hint=f"install torch {_TORCH}, as the package asks for",
        )


def _context(job: dict[str, Any], *, run: Storage, rank: int) -> WorkerContext:
    from torch.distributed import PrefixStore, TCPStore

    generation, timeout = int(job["generation"]), timedelta(seconds=int(job["timeout"]))
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return WorkerContext(
        generation=generation,
        rank=rank,
        world=int(os.environ["WORLD_SIZE"]),
        local_rank=int(os.environ["LOCAL_RANK"]),
        store=PrefixStore(f"generation-{generation}", TCPStore(host, port, is_master=False, timeout=timeout)),
        run=run,
        fence=int(job["fence"]),
        timeout=timeout,
        local_world=int(os.environ["LOCAL_WORLD_SIZE"]),
        memory=job.get("memory"),
        snapshot=job.get("snapshot"),
    )


@contextlib.contextmanager
def _logging(run: Storage, *, within: str | None, generation: int, rank: int) -> Iterator[None]:
    """Send all output, that of native code too, to a file.

    Args:
        within: the agent's folder; None: the run folder is on this machine.
    """
    place = {"generation": generation, "rank": rank}
    file = logs.file_in(Path(within), **place) if within else run.local_path(logs.path_of(**place))
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "ab", buffering=0) as log:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
