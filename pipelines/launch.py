"""`shardline run`: the owner of the run, and of the process in which the pipeline runs.

This process holds the run's lease for as long as the pipeline runs. The pipeline's process and all below it end when
this one does, however it ends; then the same command goes on with what they left.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from shardline.components.common.completion import finished
from shardline.components.common.config import Loaded
from shardline.components.common.errors import EXIT_BUG, EXIT_PEER_LOST, EXITS_STOPPED, RecordedError, Stopped
from shardline.components.common.events import EventLog
from shardline.components.common.owner import FENCE_VARIABLE, Lease, hold
from shardline.components.common.processes import child_environment
from shardline.components.common.runfolder import adopt_config, error_file, read_json, run_storage
from shardline.components.common.scratch import scratch_folder
from shardline.components.common.steps import STEPS
from shardline.components.common.storage import Storage
from shardline.pipelines.package import parameter
from shardline.pipelines.stopping import watching

LOG_FILE = "logs/pipeline.log"
PIPELINE_FOLDER = "pipeline"

#: Time for an owner that was killed to be seen as gone, and for a step to close what it has open once it has saved.
_WAIT_FOR_OWNER = 5.0
_WAIT_FOR_END = 15.0
_SHOWN_LINES = 20
#: What the pipeline's own small files may take.
_NEEDED_BYTES = 1 << 20


def run_pipeline(loaded: Loaded) -> bool:
    """Run every step of the pipeline that is not done yet; False when the run was done already.

    Raises:
        UserError: another live process owns the run.
        ConfigError: the run began under another identity.
        RecordedError: the error that ended a step, with its exit code.
        Superseded: another process has taken the run over.
        EnvironmentLacking: the disk is full.
        Stopped: a signal ended it; no process is left.
    """
    run = run_storage(loaded.config)
    with hold(run, wait=_WAIT_FOR_OWNER) as lease:
        resumed = adopt_config(run, loaded.config, sources=loaded.sources)
        if finished(run):
            return False
        for left_over in ("errors", PIPELINE_FOLDER):
            run.delete_tree(left_over)
        with scratch_folder() as scratch, _log(run, scratch) as log, watching(run, STEPS) as watcher:
            with EventLog(run, generation=lease.next_generation(), writer="run") as events:
                _announce(events, resumed=resumed)
            if not _run_child(run, loaded, lease, scratch, log):
                lease.check()
                raise _failure(run, Path(log.name), step=watcher.running_step)
    return True


def _announce(events: EventLog, *, resumed: bool) -> None:
    if resumed:
        events.emit("run.resumed", {"pid": os.getpid()}, reason="the run has begun before; what is done is skipped")
    else:
        events.emit("run.started", {"pid": os.getpid()})


def _run_child(run: Storage, loaded: Loaded, lease: Lease, scratch: Path, log: IO[bytes]) -> bool:
    config_path = scratch / "config.json"
    config_path.write_text(parameter(loaded), encoding="utf-8")
    root = run.local_path(PIPELINE_FOLDER) if run.is_local else scratch / "pipeline"
    # TMPDIR: KFP leaves a folder behind for each task; this way they go with the others.
    environment = child_environment(
        **{FENCE_VARIABLE: str(lease.fence)}, **_module_path(), TMPDIR=str(scratch), PYTHONUNBUFFERED="1"
    )
    command = [sys.executable, "-m", "shardline.pipelines.local", str(config_path), str(root)]
    # Its own session: Ctrl-C in a terminal goes to every process of a group at once, and here the order matters.
    child = subprocess.Popen(
        command,
        cwd=scratch,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    try:
        return child.wait() == 0
    finally:
        _end(child, patience=loaded.config.elastic.grace + _WAIT_FOR_END)


def _module_path() -> dict[str, str]:
    """PYTHONPATH as it is meant in this working directory; the pipeline has another."""
    path = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, path.split(os.pathsep)))} if path else {}


def _end(child: subprocess.Popen[bytes], *, patience: float) -> None:
    """Leave no process of the child's group behind: first in order, then by force."""
    if child.poll() is None:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=patience)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


@contextlib.contextmanager
def _log(run: Storage, scratch: Path) -> Iterator[IO[bytes]]:
    """The file that the pipeline's output goes to, which ends up in the run folder whatever the storage is."""
    path = run.local_path(LOG_FILE) if run.is_local else scratch / "pipeline.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(path, "ab") as log:
            yield log
    finally:
        if not run.is_local:
            run.put(path, LOG_FILE)


def _failure(run: Storage, log_path: Path, *, step: str | None) -> RecordedError | Stopped:
    """What ended the pipeline: the first error that a step left, else what can be said without."""
    records = [record for name in STEPS if (record := read_json(run, error_file(name)))]
    if records and records[0]["exit_code"] in EXITS_STOPPED:
        return Stopped(records[0]["message"], signum=records[0]["exit_code"] - 128)
    if records:
        error = RecordedError(records[0])
    elif step:
        message = f"step {step} was killed; was there too little memory?"
        error = RecordedError({"message": message, "exit_code": EXIT_PEER_LOST})
    else:
        _check_space(run)
        error = RecordedError({"message": "the pipeline failed outside its steps", "exit_code": EXIT_BUG})
        error.add_note(_last_lines(log_path))
    error.add_note(f"log: {run.url_of(LOG_FILE)}")
    return error


def _check_space(run: Storage) -> None:
    """Raises EnvironmentLacking when no more can be written to the run folder, which KFP then dies of, too."""
    run.write(f"{PIPELINE_FOLDER}/.space", bytes(_NEEDED_BYTES))
    run.delete(f"{PIPELINE_FOLDER}/.space")


def _last_lines(path: Path) -> str:
    return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-_SHOWN_LINES:])
