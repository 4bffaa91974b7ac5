"""A folder of this machine, or one that is mounted on it.

Called by `Storage`. Owns the names that begin with a dot: what is being written (`.NAME.RANDOM`) and locks
(`.NAME.lock`), which no listing shows.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from shardline.components.common.errors import EnvironmentLacking
from shardline.components.common.storage import leftovers
from shardline.components.common.storage.backend import names_of
from shardline.components.common.storage.leftovers import Wanted, is_left_of

#: How often a folder is removed that others remove, or write into, at the same time.
_REMOVALS = 20


class LocalBackend:
    """Whole files by rename, `create` by link, `swap` under a lock of the operating system."""

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def read(self, path: str) -> bytes:
        return Path(path).read_bytes()

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        with open(path, "rb", buffering=0) as handle:
            handle.seek(offset)
            found = b""
            # The system reads at most 2 GiB at once.
            while len(found) < length and (chunk := handle.read(length - len(found))):
                found = found + chunk if found else chunk
            return found

    def open(self, path: str) -> IO[bytes]:
        return open(path, "rb")

    def names(self, path: str) -> list[str]:
        return names_of([path] if os.path.isfile(path) else os.listdir(path))

    @contextlib.contextmanager
    def writer(self, path: str) -> Iterator[IO[bytes]]:
        with _temporary(path) as (handle, temporary):
            yield handle
            _sync(handle)
            os.replace(temporary, path)

    def create(self, path: str, data: bytes) -> bool:
        with _temporary(path) as (handle, temporary):
            handle.write(data)
            _sync(handle)
            try:
                os.link(temporary, path)
            except FileExistsError:
                return False
        return True

    def swap(self, path: str, old: bytes, new: bytes) -> bool:
        folder, name = os.path.split(path)
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, f".{name}.lock"), "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self.read(path) != old:
                return False
            with self.writer(path) as handle:
                handle.write(new)
            return True

    def move(self, path: str, target: str) -> None:
        shutil.move(path, target)

    def delete(self, path: str) -> None:
        os.unlink(path)

    def delete_tree(self, path: str) -> None:
        if not os.path.isdir(path) or os.path.islink(path):
            os.unlink(path)
            return
        for _ in range(_REMOVALS):
            try:
                return shutil.rmtree(path)
            except OSError as error:
                # Another process removes it as well, or still writes into it.
                if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                    raise
        shutil.rmtree(path)

    def remove_leftovers(self, path: str, of: Wanted) -> int:
        with tempfile.TemporaryFile(dir=path) as file:
            now = os.fstat(file.fileno()).st_mtime  # the file system's clock may be another machine's
        names = [name for name in os.listdir(path) if is_left_of(name, of)]
        return sum(_remove_if_left(os.path.join(path, name), now) for name in names)


def _remove_if_left(path: str, now: float) -> bool:
    try:
        with open(path, "rb") as handle:
            if now - os.fstat(handle.fileno()).st_mtime < leftovers.LOCAL_SECONDS:
                return False
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
            return True
    except OSError:
        return False  # it is being written, is finished or removed meanwhile, or its file system has no locks


@contextlib.contextmanager
def _temporary(full: str) -> Iterator[tuple[IO[bytes], str]]:
    """A file beside `full`, locked as long as it is written, removed at the end unless renamed."""
    folder, name = os.path.split(full)
    try:
        os.makedirs(folder, exist_ok=True)
    except (FileExistsError, FileNotFoundError) as error:
        raise EnvironmentLacking(
            f"cannot be created: {error.strerror}", where=folder, hint="name another place"
        ) from error
    descriptor, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=folder)
    os.fchmod(descriptor, 0o644)
    try:
        with os.fdopen(descriptor, "wb") as handle:
            with contextlib.suppress(OSError):  # where there are no locks, nothing is removed either
                fcntl.flock(handle, fcntl.LOCK_SH)
            yield handle, temporary
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def _sync(handle: IO[bytes]) -> None:
    handle.flush()
    os.fsync(handle.fileno())
