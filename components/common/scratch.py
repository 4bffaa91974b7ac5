"""Temporary folders, and the removal of those that a killed process has left.

Called by `shardline run` and by the pool of sharding.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "shardline-"
_LOCK = ".in-use"


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for the length of the block. Those whose process is gone are removed first.

    A lock on a file in it tells whether a folder is in use: the system lets go of it when its process ends, however
    that may be, and it holds between containers that share the folder for temporary files.
    """
    _remove_left_over()
    with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as folder:
        # It gets its name when it is locked, so that nobody finds it free before that.
        early = Path(folder) / f"{_LOCK}.new"
        with open(early, "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            os.rename(early, Path(folder) / _LOCK)
            yield Path(folder)


def _remove_left_over() -> None:
    for lock_file in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_LOCK}"):
        # Another user's folder, or one that its process removes just now.
        with contextlib.suppress(OSError), open(lock_file, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock_file.parent, ignore_errors=True)
