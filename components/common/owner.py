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

from shardline.components.common.errors import DamagedData, ShardlineError, Superseded, UserError
from shardline.components.common.processes import start_time
from shardline.components.common.storage import Storage

OWNER_FILE = "owner.json"
FENCE_VARIABLE = "SHARDLINE_FENCE"
LEASE_SECONDS = 30.0
_POLL_SECONDS = 0.2


class Lease:
    """The right to write a run, held by this process or by the one that started it."""

    def __init__(self, run: Storage, *, fence: int, lent: bool) -> None:
        self.fence = fence
        self._run = run
        self._lent = lent
        self._ended = threading.Event()
        self._renewer: threading.Thread | None = None

    def check(self) -> None:
        """Raises Superseded when another process has taken the run over."""
        record = _read(self._run)
        if record is None or record["fence"] != self.fence:
            raise self._superseded()

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
            except Superseded:
                return  # `check` tells whoever wants to commit
            except ShardlineError:
                continue  # storage that fails for a moment: the next beat tries again

    def _update(self, change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        while True:
            old = _raw(self._run)
            record = _parse(self._run, old)
            if record is None or record["fence"] != self.fence:
                raise self._superseded()
            change(record)
            if self._run.swap(OWNER_FILE, old, _encode(record)):
                return dict(record)

    def _superseded(self) -> Superseded:
        return Superseded("another process has taken this run over", where=self._run.url_of(OWNER_FILE))


@contextlib.contextmanager
def hold(run: Storage, *, wait: float = 0.0, evicting: int | None = None) -> Iterator[Lease]:
    """Hold the lease of the run folder `run` for the length of the block.

    An owner that was killed on this machine is seen as gone at once, one elsewhere after a lease without a beat.

    Args:
        wait: seconds to wait for a live owner to end.
        evicting: the fence of an owner that is known to be gone, and need not be waited for.

    Raises:
        UserError: another live process owns the run.
        Superseded: this process works under a lease that another one has taken over.
        DamagedData: the owner's record is not what was written.
    """
    lent = os.environ.get(FENCE_VARIABLE)
    if lent is not None:
        lease = Lease(run, fence=int(lent), lent=True)
        lease.check()
        yield lease
        return
    lease = _acquire(run, deadline=time.monotonic() + wait, evicting=evicting)
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
    recent = time.time() - record["renewed"] <= record["lease_seconds"]
    alive = not record["released"] and not _is_dead(holder) and (_is_visible(holder) or recent)
    return {"pid": holder["pid"], "host": holder["host"], "fence": record["fence"], "alive": alive}


def _acquire(run: Storage, *, deadline: float, evicting: int | None) -> Lease:
    seen: bytes | None = None
    moved, since = False, time.monotonic()
    while True:
        old = _raw(run)
        before = _parse(run, old)
        if old != seen:
            moved, seen, since = seen is not None, old, time.monotonic()
        # Nobody's clock is asked: a holder that can't be seen from here is gone when its record has stood still for
        # the length of a lease.
        still = time.monotonic() - since
        free = before is None or before["released"] or before["fence"] == evicting or _is_dead(before["holder"])
        if before is None or free or still > before["lease_seconds"]:
            record = _new_record(run, before)
            if run.swap(OWNER_FILE, old, _encode(record)):
                return Lease(run, fence=record["fence"], lent=False)
        elif time.monotonic() >= deadline and (_is_visible(before["holder"]) or moved):
            holder = before["holder"]
            raise UserError(
                f"this run is being written by process {holder['pid']} on {holder['host']}",
                where=run.url,
                hint="wait for it, stop it, or give the new run another name",
            )
        time.sleep(_POLL_SECONDS)


def _new_record(run: Storage, before: dict[str, Any] | None) -> dict[str, Any]:
    if before is None:
        # Somebody may have removed the file: numbers that are taken must not be given again.
        taken = [int(name[:6]) for name in run.names("events") if name[:6].isdigit()]
        before = {"fence": max(taken, default=0), "generation": max(taken, default=0)}
    return {
        "fence": before["fence"] + 1,
        "generation": before["generation"],
        "holder": _this_process(),
        "renewed": time.time(),
        "lease_seconds": LEASE_SECONDS,
        "released": False,
    }


def _is_visible(holder: dict[str, Any]) -> bool:
    """Whether the process ids of `holder`'s machine and namespace are those of this process."""
    here = _this_process()
    return bool(holder["host"] == here["host"] and holder["namespace"] == here["namespace"])


def _is_dead(holder: dict[str, Any]) -> bool:
    return _is_visible(holder) and start_time(holder["pid"]) != holder["started"]


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
    return _parse(run, _raw(run))


def _parse(run: Storage, data: bytes | None) -> dict[str, Any] | None:
    if data is None:
        return None
    try:
        record = json.loads(data)
        if set(record) >= {"fence", "generation", "holder", "renewed", "lease_seconds", "released"}:
            return dict(record)
    except (ValueError, TypeError):
        pass
    raise DamagedData(
        "is not what was written",
        where=run.url_of(OWNER_FILE),
        hint="delete it, once no process writes this run any more",
    )


def _encode(record: dict[str, Any]) -> bytes:
    return json.dumps(record, indent=1).encode()
