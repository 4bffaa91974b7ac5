"""Which checkpoints a run has. One counts only when its commit record, made last, is there.

Called by training, evaluation and the report. It reads and writes JSON alone; no torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from shardline.components.common.errors import DamagedData, PeerLost
from shardline.components.common.storage import Storage

FOLDER = "checkpoints"
COMMIT_FILE = "commit.json"
LATEST_FILE = "latest.json"
COMMIT_VERSION = 1
_CHUNK = 1 << 22


@dataclass(frozen=True, kw_only=True)
class CheckpointRecord:
    """A commit record.

    Attributes:
        step: optimizer steps that are in it.
        generation: that of the workers that wrote it.
        files: name -> {size, sha256} of everything in its folder that counts.
        index: which of the files is the tensors' index.
        state: what is not a tensor: data position, data policy, counters.
        identity: the run's identity keys.
        layout: the layout it was saved under, for information: it loads under any.
    """

    step: int
    generation: int
    files: dict[str, dict[str, Any]]
    index: str
    state: dict[str, Any]
    identity: str
    layout: dict[str, Any]
    version: int = COMMIT_VERSION

    @property
    def folder(self) -> str:
        return folder_of(self.step)


def folder_of(step: int) -> str:
    return f"{FOLDER}/step-{step:012d}"


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
    for name in run.names(FOLDER):
        folder = f"{FOLDER}/{name}"
        if not name.startswith("step-"):
            continue
        try:
            data = run.read(f"{folder}/{COMMIT_FILE}")
        except FileNotFoundError:
            continue
        record = _decode(data, where=run.url_of(f"{folder}/{COMMIT_FILE}"))
        if isinstance(record, CheckpointRecord):
            records.append(record)
        elif on_damage:
            on_damage(folder, record)
    return sorted(records, key=lambda record: (record.generation, record.step), reverse=True)


def current(run: Storage) -> CheckpointRecord | None:
    """The checkpoint to go on from; None when there is none."""
    return next(iter(committed(run)), None)


def _encode(record: CheckpointRecord) -> bytes:
    content = asdict(record)
    return (json.dumps({**content, "check": _check(content)}, indent=1) + "\n").encode()


def _decode(data: bytes, *, where: str) -> CheckpointRecord | str:
    """The record, or what is wrong with it."""
    try:
        content = json.loads(data)
        check, version = content.pop("check", None), content["version"]
    except (ValueError, AttributeError, KeyError, TypeError):
        return f"{where}: is not a commit record"
    if isinstance(version, int) and version > COMMIT_VERSION:
        raise DamagedData(
            f"is of version {version}; this shardline reads version {COMMIT_VERSION}", where=where, hint="upgrade it"
        )
    if check != _check(content):
        return f"{where}: is not what was written"
    return CheckpointRecord(**content)


def _check(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def commit(run: Storage, record: CheckpointRecord) -> None:
    """Make the checkpoint count.

    Raises:
        PeerLost: somebody else has committed this step already.
    """
    if not run.create(f"{record.folder}/{COMMIT_FILE}", _encode(record)):
        raise PeerLost("this checkpoint was committed by another process", where=run.url_of(record.folder))
    run.write(f"{FOLDER}/{LATEST_FILE}", json.dumps({"step": record.step, "generation": record.generation}).encode())


def put_aside(run: Storage, folder: str, *, generation: int, mark: str) -> None:
    """Make the checkpoint in `folder` no longer count, as `mark` says by `generation`; its files stay."""
    run.move(f"{folder}/{COMMIT_FILE}", f"{folder}/commit.{mark}-g{generation:06d}.json")


def prune(run: Storage, *, keep: int) -> list[int]:
    """Remove all but the `keep` checkpoints to go on from; returns their steps."""
    removed = []
    for record in committed(run)[keep:]:
        # The commit record first: what is left of a removal that was cut short doesn't count.
        run.delete(f"{record.folder}/{COMMIT_FILE}")
        run.delete_tree(record.folder)
        removed.append(record.step)
    return removed


def damage(run: Storage, record: CheckpointRecord, *, rank: int = 0, world: int = 1) -> str | None:
    """What is wrong with a checkpoint's files; None when every hash is right. Each of `world` ranks checks some."""
    for number, (name, expected) in enumerate(sorted(record.files.items())):
        if number % world != rank:
            continue
        where = run.url_of(f"{record.folder}/{name}")
        try:
            size, digest = _hash(run, f"{record.folder}/{name}")
        except FileNotFoundError:
            return f"{where}: is missing"
        if size != expected["size"]:
            return f"{where}: has {size} bytes instead of {expected['size']}"
        if digest != expected["sha256"]:
            return f"{where}: does not have the hash it was written with"
    return None


def _hash(run: Storage, path: str) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    with run.open(path) as handle:
        while chunk := handle.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return size, digest.hexdigest()
