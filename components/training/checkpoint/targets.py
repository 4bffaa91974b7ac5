"""Where saves go to: the seam behind `saving`, and the one that lasts.

Called by `saving`; `memory` has the other.
"""

from __future__ import annotations

from typing import Protocol

from shardline.components.common.errors import EnvironmentLacking
from shardline.components.common.storage import Storage
from shardline.components.common.workers import WorkerContext
from shardline.components.training.checkpoint import catalog
from shardline.components.training.checkpoint.record import CheckpointRecord, folder_of
from shardline.components.training.checkpoint.store import FileRecord


class Target(Protocol):
    """Where saves go to, and what makes one count."""

    def folder(self, step: int) -> Storage:
        """Where this rank writes."""
        ...

    def written(self, step: int, file: FileRecord) -> None:
        """This rank has written `file`."""
        ...

    def check(self, step: int, file: FileRecord) -> None:
        """Raises EnvironmentLacking when rank 0 does not find what another has written."""
        ...

    def commit(self, record: CheckpointRecord) -> None:
        """Make it count; for rank 0, when all ranks have written."""
        ...


class DurableTarget:
    """Checkpoints in the run folder."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context

    def folder(self, step: int) -> Storage:
        return self._context.run.at(folder_of(step))

    def written(self, step: int, file: FileRecord) -> None:
        pass

    def check(self, step: int, file: FileRecord) -> None:
        # Each rank has written its own: a folder that is not the same for all of them shows here, not on resume.
        folder = self.folder(step)
        if not folder.exists(file.name) or folder.size(file.name) != file.size:
            raise EnvironmentLacking(
                "rank 0 does not find what another rank has written",
                where=folder.url_of(file.name),
                hint="name a storage that is the same for all machines of the run",
            )

    def commit(self, record: CheckpointRecord) -> None:
        # An old generation's rank 0 that wakes up here finds a fence that isn't its own.
        catalog.commit(self._context.run, record, check=self._context.lease.check)
