"""A folder of this machine, or one that is mounted on it.

Called by `Storage`. Owns the names that begin with a dot: what is being written (`.NAME.RANDOM`) and the lock of a swap
(`.NAME.swap`, see `fenced`), which no listing shows.

What is being written is locked by its writer, and the system ends such a lock with the process: so the file of a dead
one is known.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from shardline.components.common.errors import EnvironmentLacking
from shardline.components.common.storage import fenced, leftovers
from shardline.components.common.storage.backend import names_of
from shardline.components.common.storage.leftovers import Wanted, is_left_of

#: How often a folder is removed that others remove, or write into, at the same time.
_REMOVALS = 20
#: How long one swap may hold up others. It reads, compares and renames, all of it small.
SWAP_SECONDS = 2.0


class LocalBackend:
    """Whole files by rename, `create` by link, `swap` under a fenced lock."""

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
        mark = uuid.uuid4().hex
        mine, lock = os.path.join(folder, f".{name}.{mark}"), os.path.join(folder, f".{name}.swap")
        while self.read(path) == old:
            os.mkdir(mine)
            try:
                with _locked(os.path.join(mine, mark), new):
                    _acquire(mine, lock)
                    if self.read(path) != old:
                        return False
                    os.replace(os.path.join(lock, mark), path)
                    return True
            except FileNotFoundError:
                if not os.path.exists(path):
                    raise
                # Pushed out of the lock, so nothing is replaced: it has to be compared anew.
            finally:
                shutil.rmtree(mine, ignore_errors=True)
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(lock, mark))
                with contextlib.suppress(OSError):  # the next one's by now
                    os.rmdir(lock)
        return False

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
        if now - os.stat(path).st_mtime < leftovers.LOCAL_SECONDS:
            return False
        if not os.path.isdir(path):
            return _removed_if_dead(path)
        if not all(_removed_if_dead(os.path.join(path, name)) for name in os.listdir(path)):
            return False
        os.rmdir(path)
        return True
    except OSError:
        return False  # it is finished or removed meanwhile


def _removed_if_dead(path: str) -> bool:
    if dead := _is_dead(path):
        os.unlink(path)
    return dead


def _is_dead(path: str) -> bool:
    """Whether the one that wrote a file has ended; False where it cannot be known, as the file system has no locks."""
    try:
        with open(path, "rb") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except OSError:
        return False


def _acquire(mine: str, lock: str) -> None:
    def take() -> bool:
        try:
            os.rename(mine, lock)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            with contextlib.suppress(OSError):  # some mounts do not replace an empty folder either
                os.rmdir(lock)
            return False
        return True

    def holders() -> list[str]:
        try:
            return os.listdir(lock)
        except FileNotFoundError:
            return []

    def push_out(holder: str) -> None:
        # By a rename: on NFS, a file that is open stays in its folder, under another name, when it is deleted.
        out = f"{lock.removesuffix('.swap')}.{uuid.uuid4().hex}"
        with contextlib.suppress(FileNotFoundError):
            os.rename(os.path.join(lock, holder), out)
            os.unlink(out)

    fenced.acquire(
        take, holders, push_out, seconds=SWAP_SECONDS, is_dead=lambda holder: _is_dead(os.path.join(lock, holder))
    )


@contextlib.contextmanager
def _locked(path: str, data: bytes) -> Iterator[None]:
    """A new file, held by this process until the end."""
    with open(path, "xb") as handle:
        _hold(handle)
        handle.write(data)
        _sync(handle)
        yield


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
            _hold(handle)
            yield handle, temporary
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def _hold(handle: IO[bytes]) -> None:
    with contextlib.suppress(OSError):  # where there are no locks, nothing is taken for dead either
        fcntl.flock(handle, fcntl.LOCK_SH)


def _sync(handle: IO[bytes]) -> None:
    handle.flush()
    os.fsync(handle.fileno())
