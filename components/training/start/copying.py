"""A checkpoint's files, copied into the folder of another run as they are.

Called by `begin`. A copy and no reference: what the other run prunes, rolls back or deletes is then no matter, and a
checkpoint stays what its commit record says, whole in its own folder. Copied in parts of some megabytes, and hashed on
the way: a file that is not what was written does not arrive.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

from shardline.components.common.errors import DamagedData
from shardline.components.common.storage import Storage
from shardline.components.training.checkpoint import catalog
from shardline.components.training.checkpoint.catalog import CheckpointRecord

_PART = 16 << 20


def copy(source: Storage, record: CheckpointRecord, *, run: Storage, on_part: Callable[[int], None]) -> None:
    """Copy the files of `record`, of the run `source`, into the same folder of `run`; those that are there are kept.

    Args:
        on_part: told of so many bytes that are done; what it raises ends the copying.

    Raises:
        DamagedData: a file is not what was written, or is removed meanwhile.
    """
    for name in sorted(record.files):
        one = replace(record, files={name: record.files[name]}, index=name)
        if run.exists(f"{record.folder}/{name}") and catalog.damage(run, one) is None:
            on_part(one.bytes)
        else:
            _copy_file(
                source.at(record.folder), name, record.files[name], target=run.at(record.folder), on_part=on_part
            )


def _copy_file(
    source: Storage, name: str, expected: dict[str, object], *, target: Storage, on_part: Callable[[int], None]
) -> None:
    size, digest, done = int(str(expected["size"])), hashlib.sha256(), 0
    with target.writer(name) as handle:
        try:
            while done < size:
                part = source.read_range(name, done, min(_PART, size - done))
                if not part:
                    break
                handle.write(part)
                digest.update(part)
                done += len(part)
                on_part(len(part))
            longer = bool(source.read_range(name, size, 1))
        except FileNotFoundError:
            raise DamagedData(
                "is missing, or was removed while it was copied",
                where=source.url_of(name),
                hint="take another checkpoint with --step; `shardline checkpoint pin` keeps one",
            ) from None
        if done != size or longer or digest.hexdigest() != expected["sha256"]:
            raise DamagedData(
                "is not what was written", where=source.url_of(name), hint="take another checkpoint with --step"
            )
