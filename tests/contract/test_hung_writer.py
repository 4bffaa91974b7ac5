"""A process that stands still in the middle of a swap holds nobody up for ever, and changes nothing when it wakes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardline.components.common.storage import Storage
from shardline.components.common.storage import local as local_backend

pytestmark = pytest.mark.timeout(60)

#: Swaps `x` from 1 to 2, and stops when it has compared and is about to replace; says what `swap` gave.
SWAP = """
import os, signal, sys
from shardline.components.common.storage import Storage
replace = os.replace
def stop_once(*places):
    os.replace = replace
    os.kill(os.getpid(), signal.SIGSTOP)
    replace(*places)
os.replace = stop_once
print(Storage(sys.argv[1]).swap("x", b"1", b"2"))
"""

Writer = subprocess.Popen[str]


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    storage = Storage(str(tmp_path))
    storage.write("x", b"1")
    return storage


@pytest.fixture
def hung(storage: Storage) -> Iterator[Writer]:
    with subprocess.Popen([sys.executable, "-c", SWAP, storage.url], stdout=subprocess.PIPE, text=True) as process:
        try:
            _, status = os.waitpid(process.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status)
            yield process
        finally:
            process.kill()


def wakes(writer: Writer) -> str:
    """What its swap gave."""
    writer.send_signal(signal.SIGCONT)
    said, _ = writer.communicate(timeout=30)
    assert writer.returncode == 0
    return said.strip()


def nothing_is_left(storage: Storage) -> bool:
    return os.listdir(storage.url) == ["x"]


def test_one_that_hangs_is_overtaken_and_then_replaces_nothing(storage: Storage, hung: Writer) -> None:
    assert storage.swap("x", b"1", b"3")
    assert wakes(hung) == "False"
    assert storage.read("x") == b"3"
    assert nothing_is_left(storage)


def test_one_that_was_overtaken_compares_anew(storage: Storage, hung: Writer) -> None:
    """What it expects is there again: a swap from it is as right now as it was then."""
    assert storage.swap("x", b"1", b"3") and storage.swap("x", b"3", b"1")
    assert wakes(hung) == "True"
    assert storage.read("x") == b"2"
    assert nothing_is_left(storage)


def test_one_that_hangs_is_waited_for_as_long_as_it_may_take(
    storage: Storage, hung: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose swap is over by then has won."""
    monkeypatch.setattr(local_backend, "SWAP_SECONDS", 1000.0)
    waking = subprocess.Popen(["sh", "-c", f"sleep 1; kill -CONT {hung.pid}"])
    assert not storage.swap("x", b"1", b"3")
    waking.wait()
    assert wakes(hung) == "True"
    assert storage.read("x") == b"2"


def test_one_that_died_is_not_waited_for(storage: Storage, hung: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_backend, "SWAP_SECONDS", 1000.0)
    hung.kill()
    hung.wait()
    assert storage.swap("x", b"1", b"3")
    assert storage.read("x") == b"3"
    assert nothing_is_left(storage)


def test_without_locks_of_the_system_one_that_died_is_pushed_out(
    storage: Storage, hung: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(*asked: object) -> None:
        raise OSError("no locks here")

    monkeypatch.setattr("fcntl.flock", without)
    hung.kill()
    hung.wait()
    assert storage.swap("x", b"1", b"3")
    assert nothing_is_left(storage)
