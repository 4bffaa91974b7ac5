"""How a node cache stays within its bytes: an account of what its folder holds, and who has to go.

Called by `cache` alone. The account is a number in a file, changed under that file's lock before an entry is written: a
process that dies in between leaves it too high, which the next search of the folder puts right. A folder that several
runs share with different sizes is kept within the size of the run that adds to it.

Errors: `OSError` as it is; `NoRoom`.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from shardline.components.sharding.cache_files import Pauses, try_lock, unlock

#: The names of entries; `.tmp` behind one is an entry that is being written. Other files are not the cache's.
KEY = re.compile(r"[0-9a-f]{32}[-0-9a-z]*")
TEMPORARY = ".tmp"

_ACCOUNT = struct.Struct("<Q")
#: Left free on the file system, whatever the size: bytes, or a share of it where that is less.
_MARGIN = 5 << 30
_MARGIN_SHARE = 20
#: A search of the folder frees at least this share of the bound, so that not every new entry needs one.
_FREED_SHARE = 16
_PATIENCE = 60.0


class NoRoom(Exception):
    """Not even an empty folder would have room for the entry."""


class Entry(NamedTuple):
    """An entry's name, its size in bytes, and when it was used last, in nanoseconds."""

    name: str
    size: int
    used: int


def bound_of(size: int, *, held: int, free: int, capacity: int) -> int:
    """How many bytes the folder may hold.

    Args:
        size: as configured; held: what the folder holds.
        free, capacity: of its file system; one without a limit says 0.
    """
    if not capacity:
        return size
    return min(size, held + free - min(_MARGIN, capacity // _MARGIN_SHARE))


def to_evict(entries: Iterable[Entry], *, bound: int, need: int) -> list[Entry]:
    """Which entries make room for `need` more bytes within `bound`: the least recently used, in that order.

    Once one has to go, so many do that a sixteenth of `bound` is freed.
    """
    queue = sorted(entries, key=lambda entry: (entry.used, entry.name))
    excess = sum(entry.size for entry in queue) + need - bound
    if excess <= 0:
        return []
    evicted: list[Entry] = []
    freed = 0
    for entry in queue:
        if freed >= max(excess, bound // _FREED_SHARE):
            break
        evicted.append(entry)
        freed += entry.size
    return evicted


class Room:
    """The bytes that the entries in a folder may fill.

    Args:
        entries: their folder.
        account: the file with the number of bytes; locks: the folder of the entries' locks.
        size: bytes, as configured.
    """

    def __init__(self, entries: Path, *, account: Path, locks: Path, size: int) -> None:
        self._entries = entries
        self._account = account
        self._locks = locks
        self._size = size

    def lock_of(self, key: str) -> Path:
        """The file that whoever fetches and writes the entry has locked; few entries share one."""
        return self._locks / key[:3]

    def make(self, need: int) -> int | None:
        """Enter `need` bytes into the account; entries are removed where it would be overdrawn.

        Returns:
            How many were removed; None when the account could not be had in time.

        Raises:
            NoRoom: there is too little room even without them.
        """
        descriptor = self._lock_account()
        if descriptor is None:
            return None
        try:
            removed = 0
            held = _read_account(descriptor)
            if held is None or held + need > self._bound(held):
                removed, held = self._evict(need)
            os.pwrite(descriptor, _ACCOUNT.pack(held + need), 0)
            return removed
        finally:
            unlock(descriptor)

    def _lock_account(self) -> int | None:
        pauses = Pauses(_PATIENCE)
        while (descriptor := try_lock(self._account)) is None and not pauses.over():
            pauses.wait()
        return descriptor

    def _bound(self, held: int) -> int:
        disk = os.statvfs(self._account)
        unit = disk.f_frsize
        return bound_of(self._size, held=held, free=disk.f_bavail * unit, capacity=disk.f_blocks * unit)

    def _evict(self, need: int) -> tuple[int, int]:
        """Remove what has to go; says how many entries that were, and how many bytes are left."""
        entries = self._search()
        held = sum(entry.size for entry in entries)
        bound = self._bound(held)
        if need > bound:
            raise NoRoom(f"{need:,} bytes do not fit into the {max(bound, 0):,} that it may fill")
        evicted = to_evict(entries, bound=bound, need=need)
        for entry in evicted:
            (self._entries / entry.name).unlink(missing_ok=True)
        return len(evicted), held - sum(entry.size for entry in evicted)

    def _search(self) -> list[Entry]:
        """The entries, without those that are being written: theirs is one each, on top of the bound."""
        found = []
        with os.scandir(self._entries) as files:
            for file in files:
                if file.name.endswith(TEMPORARY) and KEY.fullmatch(file.name.removesuffix(TEMPORARY)):
                    self._remove_if_left(file.name)
                elif KEY.fullmatch(file.name) and file.is_file(follow_symlinks=False):
                    try:
                        status = file.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    found.append(Entry(file.name, status.st_size, status.st_atime_ns))
        return found

    def _remove_if_left(self, name: str) -> None:
        """Remove what a writer that was killed has left: where there is a writer, it has the lock."""
        descriptor = try_lock(self.lock_of(name))
        if descriptor is None:
            return
        try:
            (self._entries / name).unlink(missing_ok=True)
        finally:
            unlock(descriptor)


def _read_account(descriptor: int) -> int | None:
    data = os.pread(descriptor, _ACCOUNT.size + 1, 0)
    return int(_ACCOUNT.unpack(data)[0]) if len(data) == _ACCOUNT.size else None
