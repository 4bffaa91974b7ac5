"""The files of a node cache: the format of its entries, and the locks between the processes that share it.

Called by `cache` and `cache_room` alone. An entry is one file of named arrays that readers map instead of reading it:

    magic, checksum      12 bytes; the CRC-32 of all that follows: what is fetched is held against its true hash, so all
                         that is left to notice is a torn or decayed file, and this is four times as fast
    size, header length  12 bytes: of the whole file and of the header
    header               JSON: the entry's key, and name, type and shape of each column
    columns              the arrays' bytes, each beginning at a multiple of 64

Numbers are little-endian. `OSError` leaves from here as it is; `NotAnEntry` says that a file is not what was written.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import mmap
import os
import struct
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

#: What an entry holds: arrays by name.
Columns = Mapping[str, npt.NDArray[Any]]

_MAGIC = b"SLCACHE\x01"
_CHECKSUM = struct.Struct("<8sI")
_SIZES = struct.Struct("<QI")
_HEAD = _CHECKSUM.size + _SIZES.size
_ALIGNMENT = 64
#: Nanoseconds within which a second use is not worth a write. A use in the future was noted by a clock that was wrong.
_RECENT = 1_000_000_000


class NotAnEntry(Exception):
    """The file is torn, has decayed, or was never the entry of that key."""


def encode(key: str, columns: Columns) -> list[bytes | memoryview]:
    """The bytes of an entry, in parts; contiguous arrays are not copied."""
    arrays = {name: np.asarray(array, order="C") for name, array in columns.items()}
    about = [[name, array.dtype.str, list(array.shape)] for name, array in arrays.items()]
    header = json.dumps({"key": key, "columns": about}).encode()
    at = _HEAD + len(header)
    parts: list[bytes | memoryview] = [header]
    for array in arrays.values():
        parts += [bytes(_aligned(at) - at), array.reshape(-1).view(np.uint8).data]
        at = _aligned(at) + array.nbytes
    parts.insert(0, _SIZES.pack(at, len(header)))
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return [_CHECKSUM.pack(_MAGIC, checksum), *parts]


def decode(key: str, data: mmap.mmap | bytes, *, check: bool) -> dict[str, npt.NDArray[Any]]:
    """The columns of the entry `data`: read-only arrays over those very bytes, which live as long as one of them does.

    Args:
        check: hold its bytes against its checksum.

    Raises:
        NotAnEntry: it is no whole entry of that key.
    """
    try:
        magic, checksum = _CHECKSUM.unpack_from(data)
        size, header_length = _SIZES.unpack_from(data, _CHECKSUM.size)
        if magic != _MAGIC or size != len(data):
            raise NotAnEntry
        if check and zlib.crc32(memoryview(data)[_CHECKSUM.size :]) != checksum:
            raise NotAnEntry
        at = _HEAD + header_length
        header = json.loads(data[_HEAD:at])
        if header["key"] != key:
            raise NotAnEntry
        columns = {}
        for name, kind, shape in header["columns"]:
            dtype, count, at = np.dtype(kind), math.prod(shape), _aligned(at)
            columns[name] = np.frombuffer(data, dtype, count, at).reshape(shape)
            at += dtype.itemsize * count
        return columns
    except (struct.error, ValueError, KeyError, TypeError) as error:
        raise NotAnEntry from error


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


def map_file(path: Path) -> tuple[mmap.mmap, os.stat_result]:
    """The bytes of a file, as memory to read, and what it was at that moment. Counts as a use of it.

    Raises:
        NotAnEntry: it is empty.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        try:
            data = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        except ValueError as error:
            raise NotAnEntry from error
        _touch(descriptor, status)
        return data, status
    finally:
        os.close(descriptor)


def _touch(descriptor: int, status: os.stat_result) -> None:
    # File systems are mounted so that reading leaves no trace, or one a day: the time of the last use is put there.
    now = time.time_ns()
    if abs(now - status.st_atime_ns) < _RECENT:
        return
    # A file of another user or of a read-only folder can be read all the same.
    with contextlib.suppress(OSError):
        os.utime(descriptor, ns=(now, status.st_mtime_ns))


def try_lock(path: Path) -> int | None:
    """Lock a file, which is made if need be; None when another thread or process has it. For `unlock`.

    The lock ends with its holder, however that ends. It is `flock`'s: locks of fcntl's kind do not part threads.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o644)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, flags, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def unlock(descriptor: int) -> None:
    """Let a lock go."""
    # Closing alone would not, while a process forked meanwhile has the descriptor too.
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


class Pauses:
    """Waits, each longer than the one before, within a time limit in seconds."""

    def __init__(self, patience: float) -> None:
        self._deadline = time.monotonic() + patience
        self._pause = 0.001

    def over(self) -> bool:
        return time.monotonic() > self._deadline

    def wait(self) -> None:
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, 0.02)
