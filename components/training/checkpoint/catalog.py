"""Which checkpoints a run has. One counts only when its commit record, made last, is there.

Called by training, evaluation, the report and the command line. It reads and writes JSON alone; no torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from shardline.components.common.errors import EnvironmentLacking, PeerLost, StorageLost
from shardline.components.common.storage import Storage
from shardline.components.training.checkpoint.record import (
    FOLDER,
    CheckpointRecord,
    decode,
    encode,
    folder_of,
)

COMMIT_FILE = "commit.json"
LATEST_FILE = "latest.json"
PIN_FILE = "pinned.json"
#: What a commit record becomes whose writer was superseded while it made it.
_WITHDRAWN = b'{"withdrawn": "another process had taken the run over"}\n'
_CHUNK = 1 << 22


class Damage(NamedTuple):
    """A file of a checkpoint that is not what was written."""

    file: str
    reason: str


def committed(run: Storage, *, on_damage: Callable[[str, str], None] | None = None) -> list[CheckpointRecord]:
    """The committed checkpoints, the one to go on from first.

    A later generation's go before an earlier one's, then the higher step: a number alone says nothing after a rollback.

    Args:
        on_damage: told the folder and the reason of each commit record that is not what was written; such a
            checkpoint doesn't count.

    Raises:
        DamagedData: a record is of a version that this code doesn't know.
    """
    records = []
    for folder in folders(run):
        data = _read(run, f"{folder}/{COMMIT_FILE}")
        if data is None or data == _WITHDRAWN:
            continue
        record = decode(data, where=run.url_of(f"{folder}/{COMMIT_FILE}"), folder=folder)
        if isinstance(record, CheckpointRecord):
            records.append(record)
        elif on_damage:
            on_damage(folder, record)
    return sorted(records, key=lambda record: (record.generation, record.step), reverse=True)


def current(run: Storage) -> CheckpointRecord | None:
    """The checkpoint to go on from; None when there is none."""
    return next(iter(committed(run)), None)


def unfinished(run: Storage, records: Iterable[CheckpointRecord]) -> list[str]:
    """The folders of saves, and of removals, that did not come to their end: nothing there counts.

    Args:
        records: the checkpoints that do count. Those that were put aside are left out, too.
    """
    whole = {record.folder for record in records}
    return [
        folder
        for folder in folders(run)
        if folder not in whole
        and (
            not any(name.startswith("commit.") for name in run.names(folder))
            or _read(run, f"{folder}/{COMMIT_FILE}") == _WITHDRAWN
        )
    ]


def folders(run: Storage) -> list[str]:
    """The folder of each checkpoint, also of those that do not count."""
    return [f"{FOLDER}/{name}" for name in run.names(FOLDER) if name.startswith("step-")]


def _read(run: Storage, path: str) -> bytes | None:
    try:
        return run.read(path)
    except FileNotFoundError:
        return None


def commit(run: Storage, record: CheckpointRecord, *, check: Callable[[], None]) -> None:
    """Make the checkpoint count.

    A process that is stopped between the check and the commit, and goes on when another owns the run, takes its commit
    back; and where a generation finds an earlier one's commit of the step that it has done itself, its own replaces it.

    Args:
        check: raises Superseded when this process may no longer write the run.

    Raises:
        Superseded: by `check`; the checkpoint doesn't count.
        PeerLost: this generation, or a later one, has committed this step already.
    """
    path, data = f"{record.folder}/{COMMIT_FILE}", encode(record)
    check()
    if not run.create(path, data):
        before = _read(run, path)
        if not _gives_way(run, before, record) or not run.swap(path, before, data):
            raise PeerLost("this checkpoint was committed by another process", where=run.url_of(record.folder))
    try:
        check()
    except PeerLost:
        run.swap(path, data, _WITHDRAWN)
        raise
    # The checkpoint is there; the pointer, which the next commit sets too, must not make it a failure.
    with contextlib.suppress(StorageLost, EnvironmentLacking):
        _point_at(run, record)


def _gives_way(run: Storage, data: bytes | None, record: CheckpointRecord) -> bool:
    """Whether the commit record `data` is of an earlier generation than `record`, or none."""
    if data is None or data == _WITHDRAWN:
        return True
    before = decode(data, where=run.url_of(f"{record.folder}/{COMMIT_FILE}"), folder=record.folder)
    return not isinstance(before, CheckpointRecord) or before.generation < record.generation


def _point_at(run: Storage, record: CheckpointRecord) -> None:
    """Make `latest.json` name `record`, unless it names a later generation's."""
    path = f"{FOLDER}/{LATEST_FILE}"
    new = json.dumps({"step": record.step, "generation": record.generation}).encode()
    while True:
        old = _read(run, path)
        pointer = _pointer(old)
        if (pointer and pointer["generation"] > record.generation) or run.swap(path, old, new):
            return


def _pointer(data: bytes | None) -> dict[str, int] | None:
    try:
        content = json.loads(data or b"")
        return {name: int(content[name]) for name in ("step", "generation")}
    except (ValueError, KeyError, TypeError):
        return None


def latest_step(run: Storage) -> int | None:
    """The step that `latest.json` names; None where it names none."""
    pointer = _pointer(_read(run, f"{FOLDER}/{LATEST_FILE}"))
    return pointer["step"] if pointer else None


def put_aside(run: Storage, folder: str, *, generation: int, mark: str) -> None:
    """Make the checkpoint in `folder` no longer count, as `mark` says by `generation`; its files stay."""
    run.move(f"{folder}/{COMMIT_FILE}", f"{folder}/commit.{mark}-g{generation:06d}.json")


def damaged(run: Storage) -> list[str]:
    """The folders of checkpoints that were put aside because they are damaged."""
    mark = "commit.damaged-"
    return [folder for folder in folders(run) if any(name.startswith(mark) for name in run.names(folder))]


def pin(run: Storage, record: CheckpointRecord, *, pinned: bool = True) -> None:
    """Keep the checkpoint whatever the rules of retention say, or no longer."""
    path = f"{record.folder}/{PIN_FILE}"
    if pinned:
        run.write(path, b"{}\n")
    else:
        run.delete(path)


def is_pinned(run: Storage, record: CheckpointRecord) -> bool:
    return run.exists(f"{record.folder}/{PIN_FILE}")


def remove(run: Storage, record: CheckpointRecord) -> None:
    """Remove a checkpoint with all its files."""
    # The commit record first: what is left of a removal that was cut short doesn't count.
    run.delete(f"{record.folder}/{COMMIT_FILE}")
    run.delete_tree(record.folder)


def damages(run: Storage, record: CheckpointRecord, *, only: Iterable[str] | None = None) -> Iterator[Damage]:
    """What is wrong with a checkpoint's files, in their order; nothing when every size and hash is right.

    Args:
        only: the files to look at; all of them unless given.
    """
    for name in sorted(record.files if only is None else only):
        expected, where = record.files[name], run.url_of(f"{record.folder}/{name}")
        try:
            size, digest = _hash(run, f"{record.folder}/{name}")
        except FileNotFoundError:
            yield Damage(name, f"{where}: is missing")
            continue
        if size != expected["size"]:
            yield Damage(name, f"{where}: has {size} bytes instead of {expected['size']}")
        elif digest != expected["sha256"]:
            yield Damage(name, f"{where}: does not have the hash it was written with")


def damage(run: Storage, record: CheckpointRecord, *, rank: int = 0, world: int = 1) -> Damage | None:
    """The first of `damages`; each of `world` ranks looks at some of the files."""
    return next(damages(run, record, only=sorted(record.files)[rank::world]), None)


def _hash(run: Storage, path: str) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    with run.open(path) as handle:
        while chunk := handle.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return size, digest.hexdigest()


__all__ = [
    "COMMIT_FILE",
    "FOLDER",
    "CheckpointRecord",
    "Damage",
    "commit",
    "committed",
    "current",
    "damage",
    "damaged",
    "damages",
    "folder_of",
    "folders",
    "is_pinned",
    "latest_step",
    "pin",
    "put_aside",
    "remove",
    "unfinished",
]
