"""One writer a run: the fence, who counts as alive, and what a step inherits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardline.components.common import owner
from shardline.components.common.errors import PeerLost, UserError
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


def test_an_owner_elsewhere_is_alive_until_its_lease_runs_out(run: Storage) -> None:
    record = {
        "fence": 4,
        "generation": 7,
        "holder": {"host": "elsewhere", "namespace": "other", "pid": 1, "started": "1"},
        "renewed": time.time(),
        "lease_seconds": 30,
        "released": False,
    }
    run.write(owner.OWNER_FILE, json.dumps(record).encode())
    with pytest.raises(UserError, match="process 1 on elsewhere"), owner.hold(run):
        pass
    run.write(owner.OWNER_FILE, json.dumps({**record, "renewed": time.time() - 31}).encode())
    with owner.hold(run) as lease:
        assert (lease.fence, lease.next_generation()) == (5, 8)


def test_an_owner_that_was_replaced_may_commit_nothing(run: Storage) -> None:
    with owner.hold(run) as old:
        record = json.loads(run.read(owner.OWNER_FILE))
        run.write(owner.OWNER_FILE, json.dumps({**record, "fence": old.fence + 1}).encode())
        with pytest.raises(PeerLost):
            old.check()
        with pytest.raises(PeerLost):
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
        with pytest.raises(PeerLost), owner.hold(run):
            pass
    assert os.environ[owner.FENCE_VARIABLE]
