"""HDFS, by hdfs-native: no Java on this side.

Called by `Storage`; see `hdfsclient` for how long HDFS is waited for.

On HDFS a file can be seen while it is written, so what is written lies beside its place first, under a name with a
dot, and a rename brings it there: with overwrite for `writer`, without for `create`; the NameNode does both in one
step.

`swap` is done under the lock that `fenced` describes. Nothing tells a dead holder from one that sleeps: either is
pushed out after `LOCK_SECONDS`.
"""

from __future__ import annotations

import contextlib
import io
import posixpath
import uuid
from collections.abc import Iterator
from typing import IO, Any

from hdfs_native import WriteOptions

from shardline.components.common.errors import StorageLost
from shardline.components.common.storage import fenced, leftovers
from shardline.components.common.storage.backend import RangedFile, names_of
from shardline.components.common.storage.leftovers import Wanted, is_left_of
from shardline.components.common.storage.patience import ShortRead

LOCK_SECONDS = 20.0
_READ_AHEAD = 4 << 20
#: What is asked for at once, as each call has to be answered within a time.
_PIECE = 64 << 20


class HdfsBackend:
    """Files of HDFS, whole by rename; `swap` under a fenced lock."""

    def __init__(self, fs: Any) -> None:
        self._fs = fs
        self._client = fs.client

    def exists(self, path: str) -> bool:
        return bool(self._fs.exists(path))

    def size(self, path: str) -> int:
        return int(self._client.get_file_info(path).length)

    def read(self, path: str) -> bytes:
        return self.read_range(path, 0, -1)

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        reader = self._client.read(path)
        rest = max(0, len(reader) - offset)
        expected = rest if length < 0 else min(length, rest)
        # Past the end hdfs-native does not raise, it aborts.
        places = range(offset, offset + expected, _PIECE)
        data = b"".join(reader.read_range(at, min(_PIECE, offset + expected - at)) for at in places)
        if len(data) != expected:
            raise ShortRead(f"{len(data)} bytes came of {expected} at {offset}")
        return data

    def open(self, path: str) -> IO[bytes]:
        reader = self._client.read(path)
        stamp = str(self._client.get_file_info(path).modification_time)
        return io.BufferedReader(RangedFile(reader.read_range, len(reader), stamp), _READ_AHEAD)

    def names(self, path: str) -> list[str]:
        return names_of(status.path for status in self._client.list_status(path))

    # writing

    @contextlib.contextmanager
    def writer(self, path: str) -> Iterator[IO[bytes]]:
        with self._beside(path) as temporary:
            raw = self._client.create(temporary, WriteOptions())
            handle = io.BufferedWriter(_Checked(raw), _READ_AHEAD)
            try:
                yield handle
            except BaseException:
                with contextlib.suppress(OSError, RuntimeError):
                    raw.close()
                raise
            handle.close()
            self._rename(temporary, path, overwrite=True)

    def create(self, path: str, data: bytes) -> bool:
        with self._beside(path) as temporary:
            self._put(temporary, data)
            try:
                self._rename(temporary, path, overwrite=False)
            except FileExistsError:
                return False
            except FileNotFoundError:
                # hdfs-native got no answer and asked again, when the rename had been done.
                if self.read(path) != data:
                    raise
        return True

    def swap(self, path: str, old: bytes, new: bytes) -> bool:
        folder, name = posixpath.split(path)
        mark = uuid.uuid4().hex
        mine, lock = posixpath.join(folder, f".{name}.{mark}"), posixpath.join(folder, f".{name}.swap")
        if self.read(path) != old:
            return False
        self._put(posixpath.join(mine, mark), new)
        with self._removed(mine, posixpath.join(lock, mark)):
            self._acquire(mine, lock)
            if self.read(path) != old:
                return False
            try:
                self._rename(posixpath.join(lock, mark), path, overwrite=True)
            except FileNotFoundError as error:
                # Pushed out of the lock; or it was done, and the answer got lost.
                if self.read(path) == new:
                    return True
                raise StorageLost("was locked for too long, and others have written since") from error
            return True

    def _acquire(self, mine: str, lock: str) -> None:
        """Put the folder `mine` in the place of `lock`, which has to be missing or empty."""

        def take() -> bool:
            try:
                self._rename(mine, lock, overwrite=True)
            except FileNotFoundError:
                raise
            except OSError as error:
                if "not empty" not in str(error):
                    raise
                return False
            return True

        def push_out(holder: str) -> None:
            self._remove(posixpath.join(lock, holder))

        fenced.acquire(take, lambda: self._holders(lock), push_out, seconds=LOCK_SECONDS)

    def _holders(self, lock: str) -> list[str]:
        try:
            return self.names(lock)
        except FileNotFoundError:
            return []

    @contextlib.contextmanager
    def _beside(self, path: str) -> Iterator[str]:
        """A name beside `path` for a file that is removed at the end unless it was renamed."""
        folder, name = posixpath.split(path)
        temporary = posixpath.join(folder, f".{name}.{uuid.uuid4().hex}")
        with self._removed(temporary):
            yield temporary

    @contextlib.contextmanager
    def _removed(self, *paths: str) -> Iterator[None]:
        """Remove what is left of `paths` at the end."""
        try:
            yield
        except TimeoutError:
            raise  # HDFS is gone: it would be waited for again, for each of them
        except BaseException:
            with contextlib.suppress(OSError):
                self._remove(*paths)
            raise
        self._remove(*paths)

    def _put(self, path: str, data: bytes) -> None:
        writer = self._client.create(path, WriteOptions())
        if data:
            writer.write(data)
        writer.close()

    def _rename(self, path: str, target: str, *, overwrite: bool) -> None:
        self._client.rename(path, target, overwrite)

    def _remove(self, *paths: str) -> None:
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                self._client.delete(path, True)

    def move(self, path: str, target: str) -> None:
        self._client.mkdirs(posixpath.dirname(target), 0o755, True)
        self._client.rename(path, target, False)

    def delete(self, path: str) -> None:
        self._client.delete(path, False)

    def delete_tree(self, path: str) -> None:
        self._client.delete(path, True)

    def remove_leftovers(self, path: str, of: Wanted) -> int:
        found = [each for each in self._client.list_status(path) if is_left_of(posixpath.basename(each.path), of)]
        if not found:
            return 0
        now = self._now(path)
        left = [each for each in found if now - each.modification_time / 1000 >= leftovers.REMOTE_SECONDS]
        for status in left:
            self._remove(status.path)
        return len(left)

    def _now(self, folder: str) -> float:
        """The NameNode's time, which files have."""
        with self._beside(posixpath.join(folder, "now")) as mark:
            self._put(mark, b"")
            return float(self._client.get_file_info(mark).modification_time) / 1000


class _Checked(io.RawIOBase):
    """hdfs-native's writer with Python's errors."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return int(self._raw.write(bytes(data)))

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._raw.close()
