"""One of several processes in a namespace acts at a time: a Lease of the API server, held and renewed.

Called by the launcher and the operator. No clock but this machine's own is asked: a holder is gone when its Lease has
stood still for as long as it lasts.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from shardline.components.common.errors import ShardlineError, Superseded
from shardline.components.common.kubernetes.client import Client
from shardline.components.common.kubernetes.leases import lease
from shardline.components.common.kubernetes.objects import Manifest
from shardline.components.common.kubernetes.refusals import Conflict

LEASE_SECONDS = 15
_POLL_SECONDS = 1.0


class Lock:
    """Held by this process for the length of a `with held(...)` block."""

    def __init__(self, client: Client, name: str, *, identity: str) -> None:
        self._client, self._name, self._identity = client, name, identity
        self._ended = threading.Event()
        self._lost = False
        self._renewed = 0.0

    def check(self) -> None:
        """Raises Superseded when another process has it."""
        if self._lost:
            raise Superseded("another process has it now", where=f"Lease {self._name}")

    @property
    def is_fresh(self) -> bool:
        """Whether it was renewed so lately that nobody else can have taken it."""
        return not self._lost and time.monotonic() - self._renewed < LEASE_SECONDS

    def wait(self, *, tell: Callable[[str], None]) -> None:
        """Return when it is this process's.

        Args:
            tell: is told who has it, each once.
        """
        seen: tuple[str, float] | None = None
        told: str | None = None
        while True:
            found = self._client.get("Lease", self._name)
            if found is None:
                if self._take(None):
                    return
                continue
            version = str(found["metadata"]["resourceVersion"])
            if seen is None or seen[0] != version:
                seen = (version, time.monotonic())
            holder = found["spec"].get("holderIdentity")
            free = holder in (None, "", self._identity)
            if not free and holder != told:
                told = holder
                tell(str(holder))
            if free or time.monotonic() - seen[1] > LEASE_SECONDS:
                if self._take(version):
                    return
                continue
            time.sleep(_POLL_SECONDS)

    def _take(self, version: str | None) -> bool:
        """Write it, if it still is as at `version` (None: not there); False when somebody else was first."""
        began = time.monotonic()
        try:
            if version is None:
                self._client.create(self._lease())
            elif self._client.patch("Lease", self._name, self._lease(resourceVersion=version)) is None:
                return False
        except Conflict:
            return False
        self._renewed = began
        return True

    def _lease(self, **metadata: str) -> Manifest:
        return lease(self._name, holder=self._identity, seconds=LEASE_SECONDS, **metadata)

    def renew(self) -> None:
        """Renew it again and again; for a thread."""
        while not self._ended.wait(LEASE_SECONDS / 3):
            with contextlib.suppress(ShardlineError):  # the API server is away for a moment
                found = self._client.get("Lease", self._name)
                if found is None or found["spec"].get("holderIdentity") != self._identity:
                    self._lost = True
                    return
                self._take(str(found["metadata"]["resourceVersion"]))

    def release(self) -> None:
        self._ended.set()
        if not self._lost:
            with contextlib.suppress(ShardlineError):
                self._client.delete("Lease", self._name)


@contextlib.contextmanager
def held(
    client: Client, name: str, *, identity: str, tell: Callable[[str], None] = lambda holder: None
) -> Iterator[Lock]:
    """Wait for the lock, and hold it for the length of the block.

    Args:
        identity: of this process; the same for its successor would let both in.
        tell: is told the identity of each that is waited for.
    """
    lock = Lock(client, name, identity=identity)
    lock.wait(tell=tell)
    thread = threading.Thread(target=lock.renew, name="lock", daemon=True)
    thread.start()
    try:
        yield lock
    finally:
        lock.release()
        thread.join()
