"""What `Storage` needs of a store, and the ways that most stores give it.

Called by `Storage` alone, which names the URL in every error. Paths are those of the file system, not relative ones.
`FsspecBackend` serves what has no module of its own here (gs, az, http, memory).
"""

from __future__ import annotations

import contextlib
import io
import posixpath
import threading
from collections.abc import Iterator
from typing import IO, Any, Protocol

from fsspec.spec import AbstractBufferedFile

from shardline.components.common.storage.leftovers import Wanted
from shardline.components.common.storage.patience import ShortRead, attempt


class Backend(Protocol):
    """One store. Its methods raise what its client raises; see `Storage` for what each promises."""

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def read(self, path: str) -> bytes: ...

    def read_range(self, path: str, offset: int, length: int) -> bytes: ...

    def open(self, path: str) -> IO[bytes]: ...

    def names(self, path: str) -> list[str]: ...

    def writer(self, path: str) -> contextlib.AbstractContextManager[IO[bytes]]: ...

    def create(self, path: str, data: bytes) -> bool: ...

    def swap(self, path: str, old: bytes, new: bytes) -> bool: ...

    def move(self, path: str, target: str) -> None: ...

    def delete(self, path: str) -> None: ...

    def delete_tree(self, path: str) -> None: ...

    def remove_leftovers(self, path: str, of: Wanted) -> int: ...


class Removing:
    """Moving and deleting by fsspec, one file at a time: its `mv` and `rm` of a tree take the path for a pattern."""

    _fs: Any

    def move(self, path: str, target: str) -> None:
        self._fs.cp_file(path, target)
        self._fs.rm_file(path)

    def delete(self, path: str) -> None:
        self._fs.rm_file(path)


class FsspecBackend(Removing):
    """A store as fsspec's package for it gives it.

    Args:
        patient: repeat what fails for a moment; for packages that do not do so themselves.
    """

    def __init__(self, fs: Any, *, patient: bool) -> None:
        self._fs = fs
        self._absent = patient

    def exists(self, path: str) -> bool:
        self._forget(path)
        return bool(attempt(lambda: self._fs.exists(path)))

    def size(self, path: str) -> int:
        self._forget(path)
        return int(attempt(lambda: self._fs.info(path))["size"])

    def read(self, path: str) -> bytes:
        return bytes(attempt(lambda: self._fs.cat_file(path)))

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        return attempt(lambda: self._range(path, offset, length), absent=self._absent)

    def _range(self, path: str, offset: int, length: int) -> bytes:
        data = bytes(self._fs.cat_file(path, start=offset, end=offset + length))
        if len(data) == length:
            return data
        size = int(self._fs.info(path)["size"])
        if len(data) == size:  # an HTTP server that knows no ranges sends all of it
            return data[offset : offset + length]
        if len(data) != max(0, min(length, size - offset)):
            raise ShortRead(f"{len(data)} bytes came of {length} at {offset}")
        return data

    def open(self, path: str) -> IO[bytes]:
        handle: IO[bytes] = self._fs.open(path, "rb")
        return handle

    def names(self, path: str) -> list[str]:
        self._forget(path)
        return names_of(attempt(lambda: self._fs.ls(path, detail=False)))

    def _forget(self, path: str) -> None:
        # These file systems remember listings; other processes write here, so a memory would lie.
        self._fs.invalidate_cache(self._fs._parent(path))
        self._fs.invalidate_cache(path)

    @contextlib.contextmanager
    def writer(self, path: str) -> Iterator[IO[bytes]]:
        with whole(self._fs.open(path, "wb")) as handle:
            yield handle

    def create(self, path: str, data: bytes) -> bool:
        try:
            self._fs.pipe_file(path, data, mode="create")
        except FileExistsError:
            # A client that got no answer asks again, and then meets what it has put there itself.
            return self.read(path) == data
        return True

    def swap(self, path: str, old: bytes, new: bytes) -> bool:
        # Reads back first, which narrows the race between two writers and does not close it.
        if self.read(path) != old:
            return False
        self._fs.pipe_file(path, new)
        return True

    def delete_tree(self, path: str) -> None:
        for name in self._fs.find(path):
            self._fs.rm_file(name)

    def remove_leftovers(self, path: str, of: Wanted) -> int:
        return 0  # gs and az forget uploads by themselves after a week; the others have none


class MemoryBackend(FsspecBackend):
    """`memory://`, for tests: one process, any number of threads."""

    _lock = threading.Lock()

    def __init__(self, fs: Any) -> None:
        super().__init__(fs, patient=False)

    @contextlib.contextmanager
    def writer(self, path: str) -> Iterator[IO[bytes]]:
        # Its files show what was written so far: collect it first, then put it in one go.
        buffer = io.BytesIO()
        yield buffer
        self._fs.pipe_file(path, buffer.getvalue())

    def create(self, path: str, data: bytes) -> bool:
        with self._lock:
            if self._fs.exists(path):
                return False
            self._fs.pipe_file(path, data)
            return True

    def swap(self, path: str, old: bytes, new: bytes) -> bool:
        with self._lock:
            return super().swap(path, old, new)


class Changed(OSError):
    """A file is another one than at the start of the read."""


class RangedFile(io.RawIOBase):
    """A file of a store as a seekable stream, each read of which is a request of its own.

    Args:
        read_range: gives the bytes from an offset on, as many as asked for; it repeats what fails for a moment.
        size: of the file, in bytes.
        stamp: another one for other content, as a listing has it; None where the store has none.
    """

    def __init__(self, read_range: Any, size: int, stamp: str | None = None) -> None:
        self._read_range = read_range
        self.size = size
        self.stamp = stamp
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        at = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence] + offset
        if at < 0:
            raise ValueError(f"cannot seek to {at}")
        self._at = at
        return at

    def readinto(self, buffer: Any) -> int:
        length = min(len(buffer), max(0, self.size - self._at))
        if length:
            data = self._read_range(self._at, length)
            if len(data) != length:
                raise ShortRead(f"{len(data)} bytes came of {length} at {self._at}")
            buffer[:length] = data
            self._at += length
        return length


@contextlib.contextmanager
def whole(handle: IO[bytes]) -> Iterator[IO[bytes]]:
    """`handle`, written to its end, or given up when the block raises."""
    try:
        yield handle
    except BaseException:
        if isinstance(handle, AbstractBufferedFile):
            handle.discard()
            handle.closed = True  # or it would be flushed when it is collected
        raise
    handle.close()


def names_of(paths: Any) -> list[str]:
    """The last parts of `paths`, sorted, without those that begin with a dot."""
    names = {posixpath.basename(str(path).rstrip("/")) for path in paths}
    return sorted(name for name in names if name and not name.startswith("."))
