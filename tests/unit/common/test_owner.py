"""One writer a run: the fence, who counts as alive, and what a step inherits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardline.components.common import owner
from shardline.components.common.errors import DamagedData, EnvironmentLacking, StorageLost, Superseded, UserError
from shardline.components.common.events import EventLog
from shardline.components.common.storage import Storage

HOLD = """
import sys, time
from shardline.components.common.owner import hold
from shardline.components.common.storage import Storage
with hold(Storage(sys.argv[1])) as lease:
    print(lease.fence, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(run: Storage) -> Iterator[subprocess.Popen[str]]:
    """Another process that owns the run."""
    with subprocess.Popen([sys.executable, "-c", HOLD, run.url], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == 1
        yield process
        process.kill()


@pytest.fixture
def run(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path / "run"))


def test_fences_and_generations_only_grow(run: Storage) -> None:
    with owner.hold(run) as first:
        generations = [first.next_generation(), first.next_generation()]
    with owner.hold(run) as second:
        generations.append(second.next_generation())
    assert second.fence > first.fence
    assert generations == [1, 2, 3]


def test_a_live_owner_is_refused_and_a_killed_one_is_not(run: Storage, holder: subprocess.Popen[str]) -> None:
    with pytest.raises(UserError, match=f"process {holder.pid} on"), owner.hold(run):
        pass
    holder.send_signal(signal.SIGKILL)
    # The zombie of a killed process is not alive, though its id is still taken.
    with owner.hold(run, wait=30) as lease:
        assert lease.fence == 2


ELSEWHERE = {"host": "elsewhere", "namespace": "other", "pid": 1, "started": "1"}


def foreign(run: Storage, *, lease_seconds: float, renewed: float) -> dict[str, object]:
    record = {
        "fence": 4,
        "generation": 7,
        "holder": ELSEWHERE,
        "renewed": renewed,
        "lease_seconds": lease_seconds,
        "released": False,
    }
    run.write(owner.OWNER_FILE, json.dumps(record).encode())
    return record


def test_an_owner_elsewhere_is_gone_once_it_stands_still(run: Storage) -> None:
    # Whatever its clock says: this beat lies in the future.
    foreign(run, lease_seconds=1, renewed=time.time() + 1000)
    with owner.hold(run) as lease:
        assert (lease.fence, lease.next_generation()) == (5, 8)


def test_an_owner_elsewhere_that_beats_is_refused(run: Storage) -> None:
    record = foreign(run, lease_seconds=60, renewed=0)
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(0.1):
            record["renewed"] = time.time()
            run.write(owner.OWNER_FILE, json.dumps(record).encode())

    beating = threading.Thread(target=beat)
    beating.start()
    try:
        with pytest.raises(UserError, match="process 1 on elsewhere"), owner.hold(run):
            pass
    finally:
        ended.set()
        beating.join()


def test_storage_that_fails_for_a_moment_does_not_end_the_lease(run: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "LEASE_SECONDS", 0.2)
    swap, failures = Storage.swap, iter([StorageLost("away"), EnvironmentLacking("full"), None])

    def failing(self: Storage, *arguments: object) -> bool:
        if threading.current_thread().name == "lease" and (failure := next(failures, None)):
            raise failure
        return swap(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Storage, "swap", failing)
    with owner.hold(run):
        first = json.loads(run.read(owner.OWNER_FILE))["renewed"]
        deadline = time.monotonic() + 30
        while json.loads(run.read(owner.OWNER_FILE))["renewed"] == first:
            assert time.monotonic() < deadline, "the lease is renewed no more"
            time.sleep(0.02)


def test_an_owner_file_that_is_gone_or_garbage(run: Storage) -> None:
    with owner.hold(run) as lease, EventLog(run, generation=lease.next_generation(), writer="x") as events:
        events.emit("run.started")
    run.delete(owner.OWNER_FILE)
    with owner.hold(run) as lease:
        assert lease.next_generation() == 2
    for garbage in (b"", b"{", b"[]", b"null", b"{}", b"\xff"):
        run.write(owner.OWNER_FILE, garbage)
        with pytest.raises(DamagedData, match="delete it"), owner.hold(run):
            pass


def test_an_owner_that_was_replaced_may_commit_nothing(run: Storage) -> None:
    with owner.hold(run) as old:
        record = json.loads(run.read(owner.OWNER_FILE))
        run.write(owner.OWNER_FILE, json.dumps({**record, "fence": old.fence + 1}).encode())
        with pytest.raises(Superseded):
            old.check()
        with pytest.raises(Superseded):
            old.next_generation()
    assert json.loads(run.read(owner.OWNER_FILE))["released"] is False


def test_a_step_works_under_the_lease_of_its_starter(run: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    with owner.hold(run) as lease:
        monkeypatch.setenv(owner.FENCE_VARIABLE, str(lease.fence))
        with owner.hold(run) as lent:
            assert lent.fence == lease.fence
            lent.next_generation()
        assert json.loads(run.read(owner.OWNER_FILE))["released"] is False
        assert lease.next_generation() == 2
        monkeypatch.setenv(owner.FENCE_VARIABLE, str(lease.fence - 1))
        with pytest.raises(Superseded), owner.hold(run):
            pass
    assert os.environ[owner.FENCE_VARIABLE]
