"""The temporary folders of runs: those that a killed one leaves are removed by the next, and no others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.commands import environment

SCRIPT = """
import time
from shardline.components.common.scratch import scratch_folder
with scratch_folder() as folder:
    print(folder, flush=True)
    time.sleep(600)
"""


def start(folder: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True, env=environment(TMPDIR=str(folder))
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_what_a_killed_run_leaves_is_removed_and_what_another_uses_is_not(tmp_path: Path) -> None:
    (tmp_path / "shardline-of-somebody").mkdir()
    killed, left = start(tmp_path)
    alive, used = start(tmp_path)
    killed.kill()
    killed.wait()
    last, new = start(tmp_path)
    try:
        assert left.name.startswith("shardline-") and not left.exists()
        assert used.is_dir() and new.is_dir()
        assert (tmp_path / "shardline-of-somebody").is_dir()
    finally:
        for process in (alive, last):
            process.kill()
            process.communicate()
        killed.communicate()
