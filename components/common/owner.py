"""One writer a run: a lease with a fence, kept in the run folder's `owner.json`.

Called by whatever starts a run or a step alone. Each new owner gets a higher *fence*; a process that was owner before,
and wakes up late, finds a fence that is not its own and may commit nothing. Generations are numbered here too, so
that they only ever grow.

A step that the owner starts works under the owner's lease: it finds the fence in SHARDLINE_FENCE.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from shardline.components.common.errors import PeerLost, ShardlineError, UserError
from shardline.components.common.processes import start_time
from shardline.components.common.storage import Storage

OWNER_FILE = "owner.json"
FENCE_VARIABLE = "SHARDLINE_FENCE"
LEASE_SECONDS = 30.0


class Lease:
    """The right to write a run, held by this process or by the one that started it."""

    def __init__(self, run: Storage, *, fence: int, lent: bool) -> None:
        self.fence = fence
        self._run = run
        self._lent = lent
        self._ended = threading.Event()
        self._renewer: threading.Thread | None = None

    def check(self) -> None:
        """Raises PeerLost when another process has taken the run over."""
        record = _read(self._run)
        if record is None or record["fence"] != self.fence:
            raise PeerLost("another process has taken this run over", where=self._run.url_of(OWNER_FILE))

    def next_generation(self) -> int:
        """The number of a new generation, higher than any before in this run."""

        def advance(record: dict[str, Any]) -> None:
            record["generation"] += 1

        return int(self._update(advance)["generation"])

    def start_renewing(self) -> None:
        self._renewer = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._renewer.start()

    def release(self) -> None:
        """Let the next owner in without a wait. Nothing to do for a lease that was lent, or is lost."""
        self._ended.set()
        if self._renewer:
            self._renewer.join()
        if not self._lent:
            with contextlib.suppress(ShardlineError):
                self._update(lambda record: record.update(released=True))

    def _renew(self) -> None:
        while not self._ended.wait(LEASE_SECONDS / 4):
            try:
                self._update(lambda record: record.update(renewed=time.time()))
            except PeerLost:
                return  # lost: `check` tells whoever wants to commit

    def _update(self, change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        while True:
            old = _raw(self._run)
            record = json.loads(old) if old else {"fence": -1}
            if record["fence"] != self.fence:
                raise PeerLost("another process has taken this run over", where=self._run.url_of(OWNER_FILE))
            change(record)
            if self._run.swap(OWNER_FILE, old, _encode(record)):
                return dict(record)


@contextlib.contextmanager
def hold(run: Storage, *, wait: float = 0.0) -> Iterator[Lease]:
    """Hold the lease of the run folder `run` for the length of the block.

    Args:
        wait: seconds to wait for a live owner to end.

    Raises:
        UserError: another live process owns the run.
    """
    lent = os.environ.get(FENCE_VARIABLE)
    if lent is not None:
        lease = Lease(run, fence=int(lent), lent=True)
        lease.check()
        yield lease
        return
    lease = _acquire(run, deadline=time.monotonic() + wait)
    lease.start_renewing()
    try:
        yield lease
    finally:
        lease.release()


def owner(run: Storage) -> dict[str, Any] | None:
    """Who wrote the run last: pid, host, and whether that process is `alive` as far as can be seen from here."""
    record = _read(run)
    if record is None:
        return None
    holder = record["holder"]
    return {"pid": holder["pid"], "host": holder["host"], "fence": record["fence"], "alive": not _is_over(record)}


def _acquire(run: Storage, *, deadline: float) -> Lease:
    while True:
        old = _raw(run)
        before = json.loads(old) if old else None
        if before is None or _is_over(before):
            fence = before["fence"] + 1 if before else 1
            record = {
                "fence": fence,
                "generation": before["generation"] if before else 0,
                "holder": _this_process(),
                "renewed": time.time(),
                "lease_seconds": LEASE_SECONDS,
                "released": False,
            }
            if run.swap(OWNER_FILE, old, _encode(record)):
                return Lease(run, fence=fence, lent=False)
        elif time.monotonic() >= deadline:
            holder = before["holder"]
            raise UserError(
                f"this run is being written by process {holder['pid']} on {holder['host']}",
                where=run.url,
                hint="wait for it, stop it, or give the new run another name",
            )
        time.sleep(0.2)


def _is_over(record: dict[str, Any]) -> bool:
    if record["released"] or time.time() - record["renewed"] > record["lease_seconds"]:
        return True
    holder = record["holder"]
    here = _this_process()
    visible = holder["host"] == here["host"] and holder["namespace"] == here["namespace"]
    return bool(visible and start_time(holder["pid"]) != holder["started"])


def _this_process() -> dict[str, Any]:
    try:
        namespace = (
            f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}/{os.stat('/proc/self/ns/pid').st_ino}"
        )
    except OSError:
        namespace = ""
    pid = os.getpid()
    return {"host": socket.gethostname(), "namespace": namespace, "pid": pid, "started": start_time(pid)}


def _raw(run: Storage) -> bytes | None:
    try:
        return run.read(OWNER_FILE)
    except FileNotFoundError:
        return None


def _read(run: Storage) -> dict[str, Any] | None:
    data = _raw(run)
    return None if data is None else dict(json.loads(data))


def _encode(record: dict[str, Any]) -> bytes:
    return json.dumps(record, indent=1).encode()
