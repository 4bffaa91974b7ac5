"""`Storage`: a folder at an fsspec URL. See the package for what holds on which store."""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from shardline.components.common.errors import DamagedData, EnvironmentLacking
from shardline.components.common.storage.backend import Backend, FsspecBackend, MemoryBackend
from shardline.components.common.storage.explaining import explained
from shardline.components.common.storage.leftovers import Wanted
from shardline.components.common.storage.local import LocalBackend
from shardline.components.common.storage.urls import join, local_path, split_url

#: Requests in flight at once, of one `read_ranges`.
CONCURRENT_READS = 8


def backend_of(fs: Any) -> Backend:
    """The back end for a file system that `split_url` gave."""
    protocols = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
    if "file" in protocols:
        return LocalBackend()
    if "memory" in protocols:
        return MemoryBackend(fs)
    if protocols & {"s3", "alluxio"}:
        from shardline.components.common.storage.s3 import AlluxioBackend, S3Backend

        return S3Backend(fs) if "s3" in protocols else AlluxioBackend(fs)
    if protocols & {"hdfs", "viewfs"}:
        from shardline.components.common.storage.hdfs import HdfsBackend

        return HdfsBackend(fs)
    return FsspecBackend(fs, patient=bool(protocols & {"http", "https"}))


class Storage:
    """A folder at an fsspec URL. All paths are relative to it and use `/`."""

    def __init__(self, url: str) -> None:
        self.url = url
        local = local_path(url)
        self._backend: Backend
        if local is not None:
            # Without fsspec's file system, whose import takes as long as a data set takes to open.
            self._backend, self._base = LocalBackend(), local
        else:
            fs, self._base = split_url(url)
            self._backend = backend_of(fs)
        self.is_local = isinstance(self._backend, LocalBackend)

    def __repr__(self) -> str:
        return f"Storage({self.url!r})"

    def at(self, path: str) -> Storage:
        """The folder `path` below this one."""
        return Storage(join(self.url, path))

    def url_of(self, path: str) -> str:
        return join(self.url, path)

    def local_path(self, path: str) -> Path:
        """Where `path` lies on this machine.

        Raises:
            ValueError: the storage is not a local folder.
        """
        if not self.is_local:
            raise ValueError(f"{self.url} is not a local folder")
        return Path(self._full(path))

    def _full(self, path: str) -> str:
        return posixpath.join(self._base, path) if path else self._base

    # reading

    def exists(self, path: str) -> bool:
        with explained(self.url_of(path)):
            return self._backend.exists(self._full(path))

    def size(self, path: str) -> int:
        with explained(self.url_of(path)):
            return self._backend.size(self._full(path))

    def read(self, path: str) -> bytes:
        """The whole content. Raises FileNotFoundError when it is not there."""
        with explained(self.url_of(path)):
            return self._backend.read(self._full(path))

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """`length` bytes from `offset` on; fewer where the file ends before, and only there.

        Who knows offsets knows that the file is there: a store at the other end of a network that can't find it is
        asked again for some seconds before FileNotFoundError is raised.
        """
        if length <= 0:
            return b""
        with explained(self.url_of(path)):
            return self._backend.read_range(self._full(path), offset, length)

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of each (offset, length) in `ranges`, in their order, several at once from a store elsewhere.

        Raises:
            FileNotFoundError: the file is not there.
            DamagedData: the file ends before one of the ranges does.
        """
        if self.is_local or len(ranges) < 2:
            found = [self.read_range(path, offset, length) for offset, length in ranges]
        else:
            with ThreadPoolExecutor(min(CONCURRENT_READS, len(ranges)), thread_name_prefix="ranges") as pool:
                found = list(pool.map(lambda each: self.read_range(path, *each), ranges))
        for (offset, length), data in zip(ranges, found, strict=True):
            if len(data) != length:
                raise DamagedData(
                    f"ends before byte {offset + length}", where=self.url_of(path), hint="make or copy it once more"
                )
        return found

    def open(self, path: str) -> IO[bytes]:
        """A seekable file to read from."""
        with explained(self.url_of(path)):
            return self._backend.open(self._full(path))

    def names(self, path: str = "") -> list[str]:
        """The names directly under `path`, sorted; none when it is not there."""
        with explained(self.url_of(path)):
            try:
                return self._backend.names(self._full(path))
            except FileNotFoundError:
                return []

    # writing

    def write(self, path: str, data: bytes) -> None:
        """Put `data` at `path`, replacing what is there in one step."""
        with self.writer(path) as handle:
            handle.write(data)

    @contextlib.contextmanager
    def writer(self, path: str) -> Iterator[IO[bytes]]:
        """A file to write to, that appears at `path` whole when the block ends, or not at all when it raises."""
        inside = False
        try:
            with explained(self.url_of(path)), self._backend.writer(self._full(path)) as handle:
                inside = True
                yield handle
                inside = False
        except FileNotFoundError as error:
            if inside:
                raise  # the block's own
            raise self._nowhere(path, error) from error

    def create(self, path: str, data: bytes) -> bool:
        """Put `data` at `path` unless something is there; says whether it did."""
        with explained(self.url_of(path)):
            try:
                return self._backend.create(self._full(path), data)
            except FileNotFoundError as error:
                raise self._nowhere(path, error) from error

    def _nowhere(self, path: str, error: FileNotFoundError) -> EnvironmentLacking:
        return EnvironmentLacking(
            f"cannot be written: {error}", where=self.url_of(path), hint="make the bucket first, or name another one"
        )

    def swap(self, path: str, old: bytes | None, new: bytes) -> bool:
        """Replace `old` (None: nothing there) by `new`; False when something else is there.

        Raises:
            StorageLost: the answer got lost, and what is there now does not tell whether this or another writer was
                first. To read it again, and look for oneself in it, is up to the caller.
        """
        if old is None:
            return self.create(path, new)
        with explained(self.url_of(path)):
            try:
                return self._backend.swap(self._full(path), old, new)
            except FileNotFoundError:
                return False

    def put(self, local: Path, path: str) -> None:
        """Copy a local file to `path`, whole or not at all."""
        with open(local, "rb") as source, self.writer(path) as handle:
            while chunk := source.read(1 << 22):
                handle.write(chunk)

    def move(self, path: str, target: str) -> None:
        """Give one file another name. Nothing may be at `target`."""
        with explained(self.url_of(path)):
            self._backend.move(self._full(path), self._full(target))

    def delete(self, path: str) -> None:
        """Remove one file; it may be gone already."""
        with explained(self.url_of(path)), contextlib.suppress(FileNotFoundError):
            self._backend.delete(self._full(path))

    def remove_leftovers(self, path: str, of: Wanted) -> int:
        """Remove what killed writers have left in the folder `path`, never what a living one writes; how many it was.

        Args:
            of: says of a file's name, under which it would have been there, whether it is meant.
        """
        with explained(self.url_of(path)):
            try:
                return self._backend.remove_leftovers(self._full(path), of)
            except FileNotFoundError:
                return 0

    def delete_tree(self, path: str) -> None:
        """Remove a folder and all below it; it may be gone already."""
        with explained(self.url_of(path)), contextlib.suppress(FileNotFoundError):
            self._backend.delete_tree(self._full(path))
