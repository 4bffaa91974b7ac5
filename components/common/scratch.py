"""Temporary folders, and the removal of those that a killed process has left; temporary files that have no name.

Called by `shardline run`, by agents, and by sharding: its pool, its writer of shards, its reader of packed files.

Errors: `EnvironmentLacking`, from the block of `told`, where there is no folder for temporary files or no room in it.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from shardline.components.common.errors import FULL, EnvironmentLacking

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_PREFIX = "shardline-"
_LOCK = ".in-use"


@contextlib.contextmanager
def scratch_folder(within: Path | None = None) -> Iterator[Path]:
    """A folder for the length of the block, in that for temporary files or `within` another. Those whose process is
    gone are removed first.

    A lock on a file in it tells whether a folder is in use: the system lets go of it when its process ends, however
    that may be, and it holds between containers that share the folder for temporary files.
    """
    within = within or Path(tempfile.gettempdir())
    _remove_left_over(within)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=within, ignore_cleanup_errors=True) as folder:
        # It gets its name when it is locked, so that nobody finds it free before that.
        early = Path(folder) / f"{_LOCK}.new"
        with open(early, "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            os.rename(early, Path(folder) / _LOCK)
            yield Path(folder)


def _remove_left_over(within: Path) -> None:
    for lock_file in within.glob(f"{_PREFIX}*/{_LOCK}"):
        # Another user's folder, or one that its process removes just now.
        with contextlib.suppress(OSError), open(lock_file, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock_file.parent, ignore_errors=True)


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Say what to do when the block cannot make a temporary file or folder, or not write to it."""
    try:
        yield
    except FileNotFoundError as error:
        raise EnvironmentLacking(
            f"there is no folder for temporary files: {error.strerror}", hint="set TMPDIR to one that can be written"
        ) from error
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise EnvironmentLacking(
            f"cannot be written: {error.strerror}",
            where=tempfile.gettempdir(),
            hint="free some space there, or set TMPDIR to a folder that has some, and run it again",
        ) from error


def temporary_file() -> IO[bytes]:
    """An empty file to write and read, that is gone when it is closed or its process ends.

    What `told` says comes from every write, and from `close`, which writes what is left.
    """
    with told(), tempfile.TemporaryFile(buffering=0) as file:
        return cast(IO[bytes], io.BufferedRandom(_Temporary(os.dup(file.fileno()), "r+b")))


class _Temporary(io.FileIO):
    """The system's file, whose errors say where it is: it has no name."""

    def write(self, data: ReadableBuffer, /) -> int:
        with told():
            return super().write(data)
