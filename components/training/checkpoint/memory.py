"""Snapshots: a run's state in the memory of its machines, in the form of a checkpoint.

Called by `training.saves`, which makes them, and by the training worker, which goes on from one. A snapshot is what a
checkpoint is, file for file, in a folder of memory instead of the run folder: what is read, and how it is laid out
anew, is the same. Its agents copy it to each other and say which of them holds what: see `elasticity.snapshots`.

A snapshot counts when its record is there, which rank 0 makes last, on the machine that it is on.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardline.components.common import peers
from shardline.components.common.errors import DamagedData, PeerLost, SnapshotLost
from shardline.components.common.events import EventLog
from shardline.components.common.machine import pod_memory
from shardline.components.common.peers import Peers
from shardline.components.common.storage import Storage
from shardline.components.common.workers import WorkerContext
from shardline.components.training.checkpoint.loading import together
from shardline.components.training.checkpoint.record import CheckpointRecord, decode, describe, encode, folder_of
from shardline.components.training.checkpoint.store import FileRecord, Folder

#: With the number of the files that it is over: so agents, who see names alone, know what is whole.
_RECORD_FILE = "record-{}.json"


class MemoryTarget:
    """Where a rank's part of each snapshot goes: a `saving.Target`.

    Args:
        root: this machine's folder of memory.
    """

    def __init__(self, root: Path, *, generation: int) -> None:
        self._root, self._generation = root, generation

    def folder(self, step: int) -> Storage:
        return Storage(str(self._path(step)))

    def written(self, step: int, file: FileRecord) -> None:
        peers.write_hash(self._path(step), file.name, file.sha256)

    def check(self, step: int, file: FileRecord) -> None:
        pass  # it may be on another machine

    def commit(self, record: CheckpointRecord) -> None:
        peers.put(self._path(record.step), _RECORD_FILE.format(len(record.files)), encode(record))

    def _path(self, step: int) -> Path:
        return self._root / peers.OWN / peers.snapshot_name(generation=self._generation, step=step)


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A snapshot to go on from: which one, and the addresses that hold each file. The same for every rank."""

    generation: int
    step: int
    holders: Mapping[str, Sequence[str]]

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Snapshot:
        return Snapshot(**value)


class MemoryFolder:
    """A snapshot's files: those of this machine from its memory, the others from the machines that hold them.

    Errors: `DamagedData` where nobody gives a file any more.
    """

    def __init__(self, snapshot: Snapshot, *, root: Path | None, others: Peers) -> None:
        self._snapshot = snapshot
        self._name = peers.snapshot_name(generation=snapshot.generation, step=snapshot.step)
        self._root = root
        self._peers = others

    @property
    def url(self) -> str:
        return f"memory of {len({each for held in self._snapshot.holders.values() for each in held})} machines"

    def url_of(self, path: str) -> str:
        return f"{self.url}: {self._name}/{path}"

    def record(self) -> CheckpointRecord:
        name = next(name for name in self._snapshot.holders if name.startswith("record-"))
        # The folder that a checkpoint of that step lies in: a record of another step is not its own.
        found = decode(self.read(name), where=self.url_of(name), folder=folder_of(self._snapshot.step))
        if isinstance(found, str):
            raise DamagedData(found)
        return found

    def read(self, path: str) -> bytes:
        local = self._local(path)
        if local is not None:
            return local.read_bytes()
        return self._ask(path, lambda address: self._peers.read(address, self._name, path))

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """As `Storage.read_ranges`: of each (begin, count)."""
        local = self._local(path)
        if local is None:
            return [self._ask(path, self._fetching(path, begin, count)) for begin, count in ranges]
        with open(local, "rb") as file:
            return [os.pread(file.fileno(), count, begin) for begin, count in ranges]

    def _fetching(self, path: str, begin: int, count: int) -> Callable[[str], bytes]:
        return lambda address: self._peers.fetch(address, self._name, path, begin=begin, count=count)

    def _ask(self, path: str, ask: Callable[[str], bytes]) -> bytes:
        """The answer of the first of a file's holders that gives one."""
        failures = []
        for address in self._snapshot.holders.get(path, ()):
            try:
                return ask(address)
            except PeerLost as error:
                failures.append(str(error))
        raise DamagedData("; ".join(failures) or "nobody has it", where=self.url_of(path))

    def _local(self, path: str) -> Path | None:
        return peers.find(self._root, self._name, path) if self._root else None


def load_snapshot(
    context: WorkerContext, *, load: Callable[[CheckpointRecord, Folder], None], events: EventLog | None
) -> CheckpointRecord | None:
    """`load` the snapshot that the agents have found; None when there is none.

    All ranks call it together.

    Raises:
        SnapshotLost: it is not whole after all, and the session may have parts of it.
    """
    if context.snapshot is None:
        return None
    snapshot = Snapshot.from_json(context.snapshot)
    root = Path(context.memory) if context.memory else None
    with Peers(peers.secret_of(context.run)) as others:
        folder = MemoryFolder(snapshot, root=root, others=others)
        try:
            record: CheckpointRecord = together(folder.record, rank=context.rank)
            load(record, folder)
        except DamagedData as error:
            # The same on every rank.
            if events:
                events.emit("snapshot.lost", {"step": snapshot.step}, reason=str(error))
            raise SnapshotLost(f"the snapshot of step {snapshot.step:,} is not whole: {error}") from error
    if events:
        events.emit("snapshot.loaded", describe(record), reason=f"from the {folder.url}")
    return record


def room(root: Path) -> float:
    """Bytes that may be put into the folder of memory `root`: half of what is free, there and in the machine."""
    free = shutil.disk_usage(root).free
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        available = next(line for line in lines if line.startswith("MemAvailable:"))
        free = min(free, int(available.split()[1]) << 10)
    used, limit = pod_memory()
    if used is not None and limit is not None:
        free = min(free, limit - used)
    return max(0.0, free / 2)
