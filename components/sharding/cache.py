"""The node cache: row groups, decoded, in a folder that the ranks of a node share.

Called by `dataset`, which opens one where the config asks for it. A row group is fetched and decoded by one process of
the node, and mapped into memory by all. It is known by its place and its content, so nothing in the folder is ever out
of date, and what is read is the same with a cache and without. Safe for several threads and processes, any of which may
be killed at any byte. The folder:

    blocks-1/entries/{key}    one row group; `{key}.tmp` while it is being written
    blocks-1/locks/{xyz}      locked by who fetches a row group whose key begins so: the others wait for it
    blocks-1/account          how many bytes there are, as in `cache_room`

Trouble with the cache is never an error: a damaged entry is removed and fetched anew, and where nothing can be stored
(a full disk, no right to write, no locks) that is logged once and the process goes on by itself. Errors of the
fetching leave as they are, and the next process tries its luck.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shardline.components.common.storage import Storage
from shardline.components.sharding.blocks import Blocks
from shardline.components.sharding.cache_files import (
    Columns,
    NotAnEntry,
    Pauses,
    decode,
    encode,
    map_file,
    try_lock,
    unlock,
)
from shardline.components.sharding.cache_room import KEY, TEMPORARY, NoRoom, Room

if TYPE_CHECKING:
    from shardline.components.common.config.schema import Cache

_logger = logging.getLogger(__name__)

_FORMAT = "blocks-1"
#: Seconds after which a process no longer waits for what another one fetches.
_PATIENCE = 60.0
#: Entries that a process knows to be sound; some 20 MB.
_MOST_SOUND = 1 << 16
#: What of `Blocks` is content. The place of a row group in a split is not: another split may hold the same one.
_COLUMNS = tuple(field.name for field in fields(Blocks) if field.name != "numbers")
#: Another release may have other columns: its entries are other entries.
_COLUMNS_KEY = f"{zlib.crc32(' '.join(_COLUMNS).encode()):08x}"


@dataclass(frozen=True, kw_only=True)
class CacheStatistics:
    """What a process had from its cache so far.

    Attributes:
        hits: entries that were there; waits: that another thread or process fetched meanwhile; misses: fetched here.
        evictions, damaged: entries that were removed, for room and because they were not whole.
        read_bytes, written_bytes: of entries.
        off: why nothing is stored any more; None while all is well.
    """

    hits: int = 0
    waits: int = 0
    misses: int = 0
    evictions: int = 0
    damaged: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    off: str | None = None


def open_cache(settings: Cache, storage: Storage) -> NodeCache | None:
    """The cache for what is read from `storage`, where the settings want one."""
    if settings.use == "never" or (settings.use == "remote" and storage.is_local):
        return None
    folder = settings.folder
    if folder == "auto":
        folder = os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "shardline")
    folder = os.path.expanduser(folder)
    if folder.startswith("~"):
        _logger.warning("there is no node cache, as %s is nowhere: set resources.cache.folder", folder)
        return None
    return NodeCache(Path(folder), size=settings.size)


class NodeCache:
    """A folder of decoded row groups.

    What is read holds a file open, as long as one of its arrays lives.

    Args:
        folder: made if need be; on a file system of this node that has `flock`.
        size: bytes that the entries may fill; each thread may exceed it by the one that it writes.
    """

    def __init__(self, folder: Path, *, size: int) -> None:
        self.folder = folder / _FORMAT
        self._entries = self.folder / "entries"
        self._room = Room(self._entries, account=self.folder / "account", locks=self.folder / "locks", size=size)
        self._sound: dict[str, tuple[int, int, int]] = {}
        self._off: str | None = None
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def statistics(self) -> CacheStatistics:
        """What this object has counted until now."""
        with self._lock:
            return CacheStatistics(off=self._off, **self._counts)

    def blocks(
        self, content: str, *, sequence: int, dtype: npt.DTypeLike, first: int, fetch: Callable[[], Blocks]
    ) -> Blocks:
        """A row group.

        Args:
            content: what it is known by: 32 hexadecimal digits, which tell of its place and of its bytes.
            sequence, dtype: tokens in its samples, and their type: the same bytes may be read as several.
            first: the number, within its split, of its first block.
            fetch: reads it from where it truly is.
        """
        key = f"{content}-{sequence}-{np.dtype(dtype).name}-{_COLUMNS_KEY}"
        columns = self.get(key, lambda: _columns_of(fetch()))
        numbers = np.arange(first, first + len(columns["length"]), dtype=np.int64)
        return Blocks(numbers=numbers, **columns)

    def get(self, key: str, fetch: Callable[[], Columns]) -> dict[str, npt.NDArray[Any]]:
        """The arrays known by `key`: from the cache, or else what `fetch` gives. They may be read-only.

        Raises:
            ValueError: the key is not 32 hexadecimal digits, followed by small letters, digits and hyphens at will.
        """
        if not KEY.fullmatch(key):
            raise ValueError(f"{key!r} is not a key of the node cache")
        found = self._read(key)
        if found is not None:
            self._count(hits=1)
            return found
        pauses = Pauses(_PATIENCE)
        waited = False
        while self._off is None:
            try:
                lock = try_lock(self._room.lock_of(key))
            except OSError as error:
                self._turn_off(error)
                break
            if lock is not None:
                try:
                    return self._read_or_fetch(key, fetch, waited=waited)
                finally:
                    unlock(lock)
            if pauses.over():
                break
            pauses.wait()
            waited = True
            # Whoever has the lock may be after another entry: this one can be there before it is let go.
            found = self._read(key)
            if found is not None:
                self._count(waits=1)
                return found
        self._count(misses=1)
        return dict(fetch())

    def _read_or_fetch(self, key: str, fetch: Callable[[], Columns], *, waited: bool) -> dict[str, npt.NDArray[Any]]:
        """As `get`, for who has the entry's lock."""
        found = self._read(key)
        if found is not None:
            self._count(**{"waits" if waited else "hits": 1})
            return found
        self._count(misses=1)
        fetched = dict(fetch())
        try:
            self._store(key, fetched)
        except (OSError, NoRoom) as error:
            self._turn_off(error)
        return fetched

    def _read(self, key: str) -> dict[str, npt.NDArray[Any]] | None:
        """The arrays of an entry, if it is there and whole."""
        path = self._entries / key
        try:
            data, status = map_file(path)
            stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
            known = self._sound.get(key) == stamp
            columns = decode(key, data, check=not known)
        except OSError:
            return None
        except NotAnEntry:
            self._count(damaged=1)
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        if not known:
            if len(self._sound) >= _MOST_SOUND:
                self._sound.clear()
            self._sound[key] = stamp
        self._count(read_bytes=status.st_size)
        return columns

    def _store(self, key: str, columns: Columns) -> None:
        """Put an entry there, whole or not at all."""
        parts = encode(key, columns)
        size = sum(memoryview(part).nbytes for part in parts)
        self._entries.mkdir(parents=True, exist_ok=True)
        evicted = self._room.make(size)
        if evicted is None:
            return
        temporary = self._entries / (key + TEMPORARY)
        try:
            with open(temporary, "wb") as file:
                file.writelines(parts)
            os.replace(temporary, self._entries / key)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        self._count(evictions=evicted, written_bytes=size)

    def _count(self, **changes: int) -> None:
        with self._lock:
            self._counts.update(changes)

    def _turn_off(self, error: Exception) -> None:
        with self._lock:
            if self._off is not None:
                return
            self._off = str(error)
        _logger.warning(
            "the node cache stores nothing more: %s; each rank fetches for itself. Give resources.cache another folder "
            "or size, or set resources.cache.use to never",
            error,
        )


def _columns_of(blocks: Blocks) -> Columns:
    return {name: getattr(blocks, name) for name in _COLUMNS}
