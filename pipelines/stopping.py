"""A run that is watched, and says where it goes on when a signal stops it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from shardline.components.common.errors import ShardlineError, Stopped
from shardline.components.common.storage import Storage
from shardline.pipelines.summary import collect, goes_on
from shardline.pipelines.watch import Watcher


@contextlib.contextmanager
def watching(run: Storage, steps: Iterable[str]) -> Iterator[Watcher]:
    """Show the steps `steps` of the run in `run` for the length of the block.

    Raises:
        Stopped: what ended the block, with a hint to where the same command goes on.
    """
    watcher = Watcher(run, steps)
    try:
        with watcher:
            yield watcher
    except Stopped as error:
        # A run that is not there yet, or storage that fails now, must not hide that the run was stopped.
        with contextlib.suppress(ShardlineError, FileNotFoundError):
            error.hint = goes_on(collect(run), step=watcher.last_step)
        raise
