"""An agent's folder of memory: what its workers leave there, copies of another member's, and who may read them.

Called by the agents. The folder goes with the agent's process; its workers come and go. How much there is of it is
bounded: what is older than the newest snapshot that no single machine's loss can take is removed.
"""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass
from pathlib import Path

from shardline.components.common import peers
from shardline.components.common.errors import ShardlineError
from shardline.components.common.peers import COPIES, OWN, Peers, Server
from shardline.components.common.scratch import scratch_folder
from shardline.components.common.storage import Storage
from shardline.components.elasticity.group.state import State
from shardline.components.elasticity.snapshots import choice

#: Where Linux keeps files in memory; a container's own part of it is as large as its spec says.
_MEMORY = Path("/dev/shm")
_COPY_SECONDS = 0.2


@dataclass(frozen=True)
class Held:
    """The files of each snapshot that are here."""

    own: dict[str, tuple[str, ...]]
    copies: dict[str, tuple[str, ...]]


class Keeper:
    """See the module; for the length of a `with` block.

    Args:
        host: where other members reach it; None for an agent that is alone.

    Attributes:
        root: the folder; None where there is no such memory.
        address: of what serves it; "" when nothing does.
    """

    def __init__(self, run: Storage, *, host: str | None) -> None:
        self._run, self._host = run, host
        self.root: Path | None = None
        self.address = ""
        self._source: str | None = None
        self._serving: dict[str, list[str]] = {}
        self._oldest = ""
        self._ended = threading.Event()
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Keeper:
        if not os.access(_MEMORY, os.W_OK | os.X_OK):
            return self
        with contextlib.ExitStack() as stack:
            self.root = stack.enter_context(scratch_folder(_MEMORY))
            for name in (OWN, COPIES):
                (self.root / name).mkdir()
            if self._host is not None:
                secret = peers.secret_of(self._run)
                server = stack.enter_context(Server(self.root, host=self._host, secret=secret))
                self.address = f"{self._host}:{server.port}"
                copier = threading.Thread(target=self._copy, args=(self.root, secret), name="copies", daemon=True)
                copier.start()
                stack.callback(copier.join)
                stack.callback(self._ended.set)
            self._open = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._open.close()

    def held(self) -> Held:
        if self.root is None:
            return Held({}, {})
        return Held(peers.held(self.root / OWN), peers.held(self.root / COPIES))

    def look(self, member: str, state: State) -> None:
        """Do as the group has agreed: what to copy, and what is no longer needed."""
        if self.root is None:
            return
        self._oldest = state.kept
        for folder in (self.root / OWN, self.root / COPIES):
            for name in sorted(os.listdir(folder)):
                if name < self._oldest:
                    peers.remove(folder / name)
        if self._serving != state.serving:
            self._serving = state.serving
            self._source = choice.source_of(member, state.serving)

    def _copy(self, root: Path, secret: str) -> None:
        with Peers(secret) as others:
            while not self._ended.wait(_COPY_SECONDS):
                if (source := self._source) is not None:
                    self._copy_from(source, others, folder=root / COPIES)

    def _copy_from(self, source: str, others: Peers, *, folder: Path) -> None:
        """Copy what was made on the machine at the address `source`, the newest first."""
        here, there = peers.held(folder), {}
        with contextlib.suppress(ShardlineError):
            there = others.listing(source)
        for snapshot, files in sorted(there.items(), reverse=True):
            for file in files:
                if snapshot >= self._oldest and file not in here.get(snapshot, ()) and not self._ended.is_set():
                    # Memory that is full, or a member that goes: another one, or a later snapshot, may do.
                    with contextlib.suppress(ShardlineError, OSError):
                        others.copy(source, snapshot, file, folder=folder / snapshot)
