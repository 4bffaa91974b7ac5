"""The ledger of a run, as files of its folder: `ledger/{generation}.json`, each made once and never changed.

Called by the agent that leads, and by the launcher. An entry belongs to a generation that is over, so two that write
the same one (a leader that is gone, and the next) say the same, and the first is kept. Storage that is away costs
nothing but that: entries are in memory and are written later.

Errors: `DamagedData` for an entry that is not what was written; what storage raises when it cannot be read.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from shardline.components.common.errors import DamagedData, ShardlineError
from shardline.components.common.storage import Storage
from shardline.components.elasticity.budget.ledger import Entry

FOLDER = "ledger"
_READERS = 8
#: After which what could not be written is tried again; storage itself waits, too.
_AGAIN_SECONDS = 2.0


class Ledger:
    """The entries of the run in `run`, as they were when this was made, and those added since.

    For the length of a `with` block a thread writes what is added; what it could not write is tried again.
    """

    def __init__(self, run: Storage) -> None:
        self._folder = run.at(FOLDER)
        self._entries = _read(self._folder)
        self._unwritten: list[str] = []
        self._changed = threading.Condition()  # its lock is never held while storage works
        self._ended = False
        self._thread = threading.Thread(target=self._write_all, name="ledger", daemon=True)

    def entries(self) -> list[Entry]:
        """In the order in which it happened."""
        return [self._entries[name] for name in sorted(self._entries, key=lambda name: name.removesuffix(".json"))]

    def add(self, entry: Entry, *, job: str = "") -> None:
        """Put an entry down, in memory, unless there is one of that generation or job.

        Args:
            job: the uid of the job that the entry is about; "" for one about a generation alone.
        """
        name = f"{entry.generation:06d}{f'-job-{job}' if job else ''}.json"
        with self._changed:
            if name not in self._entries:
                self._entries[name] = entry
                self._unwritten.append(name)
                self._changed.notify()

    def write(self) -> None:
        """Write what is in memory alone.

        Raises:
            ShardlineError: storage failed; the rest is still in memory.
        """
        while self._unwritten:
            name = self._unwritten[0]
            self._folder.create(name, _encode(self._entries[name]))
            with self._changed:
                self._unwritten.remove(name)

    def __enter__(self) -> Ledger:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join()

    def _write_all(self) -> None:
        while True:
            with contextlib.suppress(ShardlineError):
                self.write()
            with self._changed:
                if self._ended:
                    break
                self._changed.wait(_AGAIN_SECONDS if self._unwritten else None)
        with contextlib.suppress(ShardlineError):
            self.write()


def _encode(entry: Entry) -> bytes:
    return (json.dumps(entry.to_json(), indent=1, ensure_ascii=False) + "\n").encode()


def _read(folder: Storage) -> dict[str, Entry]:
    names = [name for name in folder.names() if name.endswith(".json")]
    return dict(zip(names, _each(folder, names), strict=True))


def _each(folder: Storage, names: Iterable[str]) -> list[Entry]:
    if folder.is_local:
        return [_entry(folder, name) for name in names]
    with ThreadPoolExecutor(_READERS, thread_name_prefix="ledger") as pool:
        return list(pool.map(lambda name: _entry(folder, name), names))


def _entry(folder: Storage, name: str) -> Entry:
    try:
        return Entry.from_json(json.loads(folder.read(name)))
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedData(
            "is not what was written",
            where=folder.url_of(name),
            hint="bring it back, or delete it: what it tells of is then not counted",
        ) from error
