"""The file systems behind `hdfs://` and `viewfs://`: hdfs-native's, with an end to its patience and Python's errors.

Called by `split_url` and `hdfs`. Hadoop's own settings hold (HADOOP_CONF_DIR with core-site.xml and hdfs-site.xml), and
its own retries: `dfs.client.failover.*` there says how a NameNode is waited for. Of one that is gone that is minutes,
and of one that takes calls and does not answer for ever, so each call is given up after `patience.limit()`. What it
waits for stays behind in a thread, which ends with the process.
"""

from __future__ import annotations

import sys
import threading
import urllib.parse
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from hdfs_native import Client
from hdfs_native.fsspec import HdfsFileSystem, ViewfsFileSystem

from shardline.components.common.errors import EnvironmentLacking
from shardline.components.common.storage import patience

#: A call that is made once needs some time, too.
_LEAST_SECONDS = 1.0
_UNKNOWN = ("No NameNode hosts found", "No fs.defaultFS setting found", "No viewfs", "No mount")

T = TypeVar("T")


class _Literal:
    """Paths as they stand: hdfs-native's file systems take what follows a `#` or a `?` for no part of it."""

    client: Client

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.client.inner = _Patient(self.client.inner)  # type: ignore[assignment]

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        if "://" in path:
            path = "/" + path.partition("://")[2].partition("/")[2]
        return path.rstrip("/") or "/"


class LiteralHdfs(_Literal, HdfsFileSystem):
    protocol = "hdfs"


class LiteralViewfs(_Literal, ViewfsFileSystem):
    protocol = "viewfs"


def connect(scheme: str, rest: str, url: str) -> tuple[Any, str]:
    """The file system and path of `hdfs://HOST:PORT/x`, `hdfs://NAMESERVICE/x` or `hdfs:///x`.

    Raises:
        EnvironmentLacking: the Hadoop settings name no NameNode for it.
        ValueError: the port is no number.
    """
    address = urllib.parse.urlsplit(f"//{rest.partition('/')[0]}")
    kind = LiteralHdfs if scheme == "hdfs" else LiteralViewfs
    try:
        return kind(address.hostname, address.port), kind._strip_protocol(url)
    except RuntimeError as error:
        raise _named(error, url) from error


class _Patient:
    """hdfs-native's client, or a file that it opened, whose calls come to an end and raise Python's errors."""

    def __init__(self, raw: Any, *, is_file: bool = False) -> None:
        self._raw, self._is_file = raw, is_file
        self._given_up: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return partial(self._ask, name)

    def _ask(self, name: str, *arguments: Any) -> Any:
        # Python closes a file that is no longer used, however often it was, and at its own end, when no thread starts.
        if self._given_up is not None:
            if name == "close":
                return None
            raise self._given_up
        if sys.is_finalizing():
            raise OSError("this process ends")
        try:
            found = _asked(getattr(self._raw, name), *arguments)
        except TimeoutError as error:
            self._given_up = error if self._is_file else None
            raise
        if self._is_file and name == "close":
            self._given_up = OSError("the file is closed")
        is_file = hasattr(found, "file_length") or hasattr(found, "hsync")
        return _Patient(found, is_file=True) if is_file else found


def _asked(method: Callable[..., Any], *arguments: Any) -> Any:
    def call() -> Any:
        found = method(*arguments)
        # A listing is an iterator, which asks for more as it goes.
        return list(found) if hasattr(found, "__next__") else found

    try:
        return _in_time(call)
    except (FileNotFoundError, FileExistsError) as error:
        # Without the stack of the NameNode that they carry.
        raise type(error)(str(error).partition("\n")[0]) from error
    except RuntimeError as error:
        raise _named(error, None) from error


def _in_time(call: Callable[[], T]) -> T:
    answer: Future[T] = Future()

    def work() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)

    seconds = max(patience.limit(), _LEAST_SECONDS)
    threading.Thread(target=work, name="hdfs", daemon=True).start()
    try:
        return answer.result(seconds)
    except TimeoutError as error:
        raise TimeoutError(f"no answer for {seconds:g} s ({patience.SECONDS_VARIABLE})") from error


def _named(error: RuntimeError, where: str | None) -> Exception:
    """What hdfs-native, which has one exception for all that is no matter of files, means."""
    text = str(error).partition("\\n")[0].partition("\n")[0]
    if any(sign in text for sign in _UNKNOWN):
        return EnvironmentLacking(
            "Hadoop's settings name no NameNode for this URL",
            where=where,
            hint="write hdfs://HOST:PORT/..., or set HADOOP_CONF_DIR to the folder of core-site.xml and hdfs-site.xml",
        )
    if "AccessControlException" in text or "GSSAPI" in text or "Kerberos" in text:
        return PermissionError(text)
    if "ParentNotDirectory" in text:
        return NotADirectoryError(20, "a file is where a folder should be", where)
    return OSError(text)
