"""What workers print, on its way to `logs/` in a run folder that is not on this machine. Called by the agents.

A worker writes to a file of its agent's, which copies it to the run folder: now and then while the worker runs, so that
little is missing when the machine is lost, and once more when it has ended, in whatever way.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from shardline.components.common.errors import ShardlineError
from shardline.components.common.scratch import scratch_folder
from shardline.components.common.storage import Storage

#: How old a copy is at most while there is something new.
_EVERY_SECONDS = 30.0
#: How long an agent that ends waits for the store to take what is left.
_PATIENCE = 10.0


def path_of(*, generation: int, rank: int) -> str:
    """In the run folder."""
    return f"logs/{generation:06d}/{rank:05d}.log"


def file_in(folder: Path, *, generation: int, rank: int) -> Path:
    """Where a worker writes to."""
    return folder / f"{generation:06d}-{rank:05d}.log"


class Logs:
    """The files of one agent's workers, for the length of a block.

    Attributes:
        folder: where they are; None where workers write to the run folder itself.
    """

    def __init__(self, run: Storage, *, every: float = _EVERY_SECONDS) -> None:
        self.folder: Path | None = None
        self._run = run
        self._every = every
        self._stack = contextlib.ExitStack()
        #: Generation and rank of workers that have ended; None: there will be no more.
        self._ended: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        #: How much of each there is a copy of. Only the thread looks at it.
        self._copied: dict[tuple[int, int], int] = {}

    def __enter__(self) -> Self:
        if not self._run.is_local:
            self.folder = self._stack.enter_context(scratch_folder())
            # A store that hangs holds up nobody's end.
            thread = threading.Thread(target=self._serve, args=(self.folder,), name="logs", daemon=True)
            thread.start()
            self._stack.callback(thread.join, _PATIENCE)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.put(None)
        self._stack.close()

    def ended(self, *, generation: int, rank: int) -> None:
        """Have the rest of a worker's log copied; nobody waits for it."""
        if self.folder:
            self._ended.put((generation, rank))

    def _serve(self, folder: Path) -> None:
        while True:
            with contextlib.suppress(queue.Empty):
                worker = self._ended.get(timeout=self._every)
                if worker is None:
                    return
                self._copy(folder, worker)
                continue
            for file in sorted(folder.glob("*.log")):
                generation, _, rank = file.stem.partition("-")
                self._copy(folder, (int(generation), int(rank)))

    def _copy(self, folder: Path, worker: tuple[int, int]) -> None:
        generation, rank = worker
        file = file_in(folder, generation=generation, rank=rank)
        # A worker that ended before it began has none; what the store does not take now, it may take the next time.
        with contextlib.suppress(FileNotFoundError, ShardlineError):
            size = file.stat().st_size
            if size != self._copied.get(worker, 0):
                self._run.put(file, path_of(generation=generation, rank=rank))
                self._copied[worker] = size
