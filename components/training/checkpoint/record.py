"""A commit record, and what it must look like to be one. Pure.

Called by `catalog`. What is read may have been written by anybody: nothing in it runs, no name in it leads out of the
checkpoint's folder, and whatever has another form is no record.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field
from typing import Any

from shardline.components.common.errors import DamagedData

FOLDER = "checkpoints"
#: Version 2 added `identity_keys` and `time`; records of version 1 are read, too.
COMMIT_VERSION = 2
#: What `state` holds at least, in whole numbers: the data position, updates of the optimizer, target tokens.
COUNTERS = ("position", "updates", "tokens")
_FILE_NAME = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class CheckpointRecord:
    """A commit record.

    Attributes:
        step: optimizer steps that are in it.
        generation: that of the workers that wrote it.
        files: name -> {size, sha256} of everything in its folder that counts.
        index: which of the files is the tensors' index.
        state: what is not a tensor: data position, data policy, counters.
        identity: a hash of the run's identity keys.
        identity_keys: the keys themselves, by dotted path; empty in records of version 1.
        layout: the layout it was saved under, for information: it loads under any.
        time: when it was committed; empty in records of version 1.
    """

    step: int
    generation: int
    files: dict[str, dict[str, Any]]
    index: str
    state: dict[str, Any]
    identity: str
    layout: dict[str, Any]
    identity_keys: dict[str, Any] = field(default_factory=dict)
    time: str = ""
    version: int = COMMIT_VERSION

    @property
    def folder(self) -> str:
        return folder_of(self.step)

    @property
    def bytes(self) -> int:
        return sum(int(file["size"]) for file in self.files.values())


def folder_of(step: int) -> str:
    """Where in the run folder the checkpoint of optimizer step `step` lies."""
    return f"{FOLDER}/step-{step:012d}"


def fingerprint(record: CheckpointRecord) -> str:
    """Of all that a run which goes on from the checkpoint depends on: tensors, step and state."""
    content = json.dumps([record.step, record.files, record.index, record.state], sort_keys=True)
    return f"blake2b-{hashlib.blake2b(content.encode(), digest_size=16).hexdigest()}"


def describe(record: CheckpointRecord) -> dict[str, Any]:
    """What an event says of a checkpoint."""
    return {
        "step": record.step,
        "generation": record.generation,
        "bytes": record.bytes,
        "files": len(record.files),
        "position": record.state["position"],
    }


def encode(record: CheckpointRecord) -> bytes:
    content = asdict(record)
    return (json.dumps({**content, "check": _check(content)}, indent=1) + "\n").encode()


def decode(data: bytes, *, where: str, folder: str) -> CheckpointRecord | str:
    """The record, or what is wrong with it.

    Args:
        where: the URL to name.
        folder: the folder it lies in: a record of another step is not its own.

    Raises:
        DamagedData: it is of a version that this code doesn't know.
    """
    try:
        content = json.loads(data)
        check, version = content.pop("check", None), content["version"]
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        return f"{where}: is not a commit record"
    if isinstance(version, int) and version > COMMIT_VERSION:
        raise DamagedData(
            f"is of version {version}; this shardline reads versions up to {COMMIT_VERSION}",
            where=where,
            hint="upgrade it",
        )
    if check != _check(content):
        return f"{where}: is not what was written"
    if not _is_record(content):
        return f"{where}: is not a commit record"
    record = CheckpointRecord(**content)
    return record if record.folder == folder else f"{where}: belongs to {record.folder}"


def _check(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _is_record(content: dict[str, Any]) -> bool:
    kinds = {
        "step": int,
        "generation": int,
        "files": dict,
        "index": str,
        "state": dict,
        "identity": str,
        "layout": dict,
        "version": int,
    }
    optional = {"identity_keys": dict, "time": str}
    if not set(kinds) <= set(content) <= set(kinds) | set(optional):
        return False
    if not all(type(content[name]) is kind for name, kind in {**kinds, **optional}.items() if name in content):
        return False
    return (
        content["step"] >= 0
        and content["generation"] >= 0
        and content["index"] in content["files"]
        and all(type(content["state"].get(name)) is int for name in COUNTERS)
        and all(_is_file(name, entry) for name, entry in content["files"].items())
    )


def _is_file(name: str, entry: Any) -> bool:
    if not (_FILE_NAME.fullmatch(name) and isinstance(entry, dict) and set(entry) == {"size", "sha256"}):
        return False
    return type(entry["size"]) is int and isinstance(entry["sha256"], str) and bool(_SHA256.fullmatch(entry["sha256"]))
