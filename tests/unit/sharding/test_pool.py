"""Sharding's worker processes: what is left of them, and of the parent, when some are killed."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from shardline.components.common.errors import PeerLost
from shardline.components.sharding.pool import Pool
from tests.commands import environment

#: A job of more than a pipe holds, and workers that end before they have read any of it.
SCRIPT = """
import multiprocessing
import sys
from shardline.components.common.errors import PeerLost
from shardline.components.sharding.pool import Pool

if __name__ == "__main__":
    multiprocessing.set_executable(sys.argv[1])
    try:
        with Pool(b"x" * 1_000_000, workers=2) as pool:
            list(pool.map(len, [1, 2]))
    except PeerLost:
        print("lost")
"""


def test_workers_that_are_killed_at_their_start_are_noticed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    interpreter = tmp_path / "python"
    # multiprocessing's own helper is let live.
    interpreter.write_text(f'#!/bin/sh\ncase "$*" in *resource_tracker*) exec {sys.executable} "$@";; esac\nexit 1\n')
    interpreter.chmod(0o755)
    done = subprocess.run(
        [sys.executable, script, interpreter],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment(),
        check=False,
    )
    assert done.stdout == "lost\n", done.stderr


def test_a_worker_that_cannot_be_started_is_a_lost_one() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Pool(b"", workers=2) as pool:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
        try:
            with pytest.raises(PeerLost, match="could not be started"):
                list(pool.map(size_of, [1, 2]))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)


def size_of(job: bytes, number: int) -> int:
    return len(job) + number


def test_every_worker_has_the_whole_job_and_nothing_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with Pool(b"x" * 1_000_000, workers=2) as pool:
        assert sorted(pool.map(size_of, range(4))) == [(number, 1_000_000 + number) for number in range(4)]
    assert not list(tmp_path.iterdir())


def test_an_error_of_a_task_leaves_as_it_is() -> None:
    with Pool(b"", workers=2) as pool, pytest.raises(PeerLost, match="gone"):
        list(pool.map(lose, [1]))


def lose(job: bytes, number: int) -> None:
    raise PeerLost("gone")
