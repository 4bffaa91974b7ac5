"""One way to read and write, whatever fsspec URL the storage root is.

Called by every step. It owns three promises that the rest relies on: `write` shows the old or the new content and
never half of it, `create` never replaces what is there, and every failure leaves as a `ShardlineError` that names the
URL. `FileNotFoundError` and `FileExistsError` pass through, as callers decide on them.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import posixpath
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import fsspec
from fsspec.core import url_to_fs
from fsspec.spec import AbstractBufferedFile

from shardline.components.common.errors import EnvironmentLacking, ShardlineError, StorageLost, UserError, from_os_error

_PASSED_ON = (FileNotFoundError, FileExistsError, ShardlineError)
_swap_lock = threading.Lock()


@contextlib.contextmanager
def explained(where: str) -> Iterator[None]:
    """Give the block's storage errors the form of a `ShardlineError` about `where`."""
    try:
        yield
    except _PASSED_ON:
        raise
    except OSError as error:
        raise from_os_error(error, where) from error
    except Exception as error:
        # S3's client has errors of its own for what happens before an answer; its package may not be installed.
        kinds = {kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "botocore.exceptions"}
        if not kinds:
            raise
        if kinds & {"NoCredentialsError", "PartialCredentialsError"}:
            hint = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
            raise EnvironmentLacking(str(error), where=where, hint=hint) from error
        raise StorageLost(f"storage failed: {error}", where=where) from error


def split_url(url: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """The file system and the path within it that `url` names.

    Raises:
        UserError: the scheme is unknown.
        EnvironmentLacking: the scheme needs a package that is not installed.
    """
    try:
        # A path on this machine is never a pattern or a chain of URLs, whatever characters are in it.
        if "://" not in url:
            return fsspec.filesystem("file"), os.path.abspath(os.path.expanduser(url))
        fs, path = url_to_fs(url)
    except ValueError as error:
        raise UserError(f"not a storage URL: {error}", where=url) from error
    except ImportError as error:
        raise EnvironmentLacking(str(error), where=url, hint="install that package") from error
    return fs, path


def join(url: str, *parts: str) -> str:
    """`url` with `parts` below it."""
    return posixpath.join(url.rstrip("/") or "/", *parts)


class Storage:
    """A folder at an fsspec URL. All paths are relative to it and use `/`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._fs, self._base = split_url(url)
        self.is_local = "file" in _protocols(self._fs)

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
            self._forget(path)
            return bool(self._fs.exists(self._full(path)))

    def size(self, path: str) -> int:
        with explained(self.url_of(path)):
            self._forget(path)
            return int(self._fs.info(self._full(path))["size"])

    def read(self, path: str) -> bytes:
        """The whole content. Raises FileNotFoundError when it is not there."""
        with explained(self.url_of(path)):
            return bytes(self._fs.cat_file(self._full(path)))

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """`length` bytes from `offset` on; fewer where the file ends before."""
        with explained(self.url_of(path)):
            return bytes(self._fs.cat_file(self._full(path), start=offset, end=offset + length))

    def open(self, path: str) -> IO[bytes]:
        """A seekable file to read from."""
        with explained(self.url_of(path)):
            handle: IO[bytes] = self._fs.open(self._full(path), "rb")
            return handle

    def names(self, path: str = "") -> list[str]:
        """The names directly under `path`, sorted; none when it is not there."""
        full = self._full(path)
        with explained(self.url_of(path)):
            self._forget(path)
            try:
                found = self._fs.ls(full, detail=False)
            except FileNotFoundError:
                return []
        names = {posixpath.basename(name.rstrip("/")) for name in found}
        return sorted(name for name in names if name and not name.startswith("."))

    def _forget(self, path: str) -> None:
        # Object-store file systems remember listings; other processes write here, so a memory would lie.
        self._fs.invalidate_cache(self._fs._parent(self._full(path)))
        self._fs.invalidate_cache(self._full(path))

    # writing

    def write(self, path: str, data: bytes) -> None:
        """Put `data` at `path`, replacing what is there in one step."""
        with self.writer(path) as handle:
            handle.write(data)

    @contextlib.contextmanager
    def writer(self, path: str) -> Iterator[IO[bytes]]:
        """A file to write to, that appears at `path` whole when the block ends, or not at all when it raises."""
        with explained(self.url_of(path)):
            if self.is_local:
                with _local_temporary(self._full(path)) as (handle, temporary):
                    yield handle
                    _sync(handle)
                    os.replace(temporary, self._full(path))
                return
            if "memory" in _protocols(self._fs):
                # Its files show what was written so far: collect it first, then put it in one go.
                buffer = io.BytesIO()
                yield buffer
                self._fs.pipe_file(self._full(path), buffer.getvalue())
                return
            remote: IO[bytes] = self._fs.open(self._full(path), "wb")
            try:
                yield remote
            except BaseException:
                if isinstance(remote, AbstractBufferedFile):
                    remote.discard()
                raise
            try:
                remote.close()
            except FileNotFoundError as error:
                raise self._nowhere(path, error) from error

    def create(self, path: str, data: bytes) -> bool:
        """Put `data` at `path` unless something is there; says whether it did.

        On a store at the other end of a network, where an answer can get lost, True means that `data` is there now.
        """
        full = self._full(path)
        with explained(self.url_of(path)):
            if self.is_local:
                with _local_temporary(full) as (handle, temporary):
                    handle.write(data)
                    _sync(handle)
                    try:
                        os.link(temporary, full)
                    except FileExistsError:
                        return False
                return True
            try:
                self._fs.pipe_file(full, data, mode="create")
            except FileNotFoundError as error:
                raise self._nowhere(path, error) from error
            except FileExistsError:
                # A client that got no answer asks again, and then meets what it has put there itself.
                return self.read(path) == data
            return True

    def _nowhere(self, path: str, error: FileNotFoundError) -> EnvironmentLacking:
        return EnvironmentLacking(
            f"cannot be written: {error}", where=self.url_of(path), hint="make the bucket first, or name another one"
        )

    def swap(self, path: str, old: bytes | None, new: bytes) -> bool:
        """Replace `old` (None: nothing there) by `new`; False when something else is there.

        Atomic on a local folder, on `memory://` and for `old=None` wherever `create` is. On other stores it reads
        back first, which narrows the race and does not close it.
        """
        if old is None:
            return self.create(path, new)
        with self._exclusive(path):
            try:
                if self.read(path) != old:
                    return False
            except FileNotFoundError:
                return False
            self.write(path, new)
            return True

    @contextlib.contextmanager
    def _exclusive(self, path: str) -> Iterator[None]:
        if not self.is_local:
            with _swap_lock:
                yield
            return
        full = Path(self._full(path))
        with explained(self.url_of(path)):
            full.parent.mkdir(parents=True, exist_ok=True)
            with open(full.parent / f".{full.name}.lock", "wb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield

    def put(self, local: Path, path: str) -> None:
        """Copy a local file to `path`, whole or not at all."""
        with open(local, "rb") as source, self.writer(path) as handle:
            while chunk := source.read(1 << 22):
                handle.write(chunk)

    def move(self, path: str, target: str) -> None:
        """Give one file another name. Nothing may be at `target`."""
        with explained(self.url_of(path)):
            self._fs.mv(self._full(path), self._full(target))

    def delete(self, path: str) -> None:
        """Remove one file; it may be gone already."""
        with explained(self.url_of(path)), contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._full(path))

    def delete_tree(self, path: str) -> None:
        """Remove a folder and all below it; it may be gone already."""
        with explained(self.url_of(path)), contextlib.suppress(FileNotFoundError):
            self._fs.rm(self._full(path), recursive=True)


def _protocols(fs: Any) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)


@contextlib.contextmanager
def _local_temporary(full: str) -> Iterator[tuple[IO[bytes], str]]:
    """A file beside `full`, removed at the end unless renamed. Its name begins with a dot: no listing shows it."""
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
            yield handle, temporary
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def _sync(handle: IO[bytes]) -> None:
    handle.flush()
    os.fsync(handle.fileno())
