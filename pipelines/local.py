"""The process that runs the training pipeline on this machine, with KFP's own local runner.

Started by `launch`, as `python -m shardline.pipelines.local CONFIG PIPELINE_ROOT`, in a temporary working directory;
whatever it and its tasks print goes to the pipeline's log. It ends with 0 when each task did, and with another code
otherwise: the reason is in the run folder, where the failed step left it.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
from pathlib import Path
from types import FrameType

from shardline.components.common.config import parse
from shardline.components.common.errors import EXIT_TERMINATED
from shardline.components.common.processes import child_environment, die_with_parent

_TASK_PID = "task.pid"


def main(config_path: str, pipeline_root: str) -> None:
    die_with_parent()
    script = _offer_this_python(Path.cwd() / "bin")
    _pass_on_sigterm(script)
    os.environ.update(child_environment())  # the tasks end with this process, not only with its parent
    text = Path(config_path).read_text(encoding="utf-8")
    name = parse(text, source=config_path, ignore_environment=True).config.kubeflow.pipeline

    from kfp import local

    from shardline.pipelines.training import training_pipeline

    local.init(
        local.SubprocessRunner(use_venv=False),
        pipeline_root=pipeline_root,
        workspace_root=str(Path.cwd() / "workspace"),
    )
    training_pipeline(name=name, pods=None)(config=text)


def _offer_this_python(folder: Path) -> Path:
    """Make `python3` mean this interpreter, for the tasks; returns the script that does.

    KFP replaces the text "python3" in a task's command by `sys.executable`, and in its arguments too: a config that
    names /usr/lib/python3.11 would arrive changed. With "python3" for both, the replacement changes nothing.
    """
    folder.mkdir()
    script = folder / "python3"
    python, pid_file = shlex.quote(sys.executable), shlex.quote(str(script.with_name(_TASK_PID)))
    # "$2" is the module that the task's shell runs; `exec` keeps the process id.
    script.write_text(
        f'#!/bin/sh\n[ "$2" = kfp.dsl.executor_main ] && echo $$ > {pid_file}\nexec {python} "$@"\n', encoding="utf-8"
    )
    script.chmod(0o755)
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    sys.executable = "python3"
    return script


def _pass_on_sigterm(script: Path) -> None:
    """On SIGTERM, pass it to the running task, and let no further task start.

    The task alone gets it, and ends its own workers in order; its shell must stay, as the task ends with it. KFP's
    runner reads a task's output up to its end, so it returns when all that the task started is gone.
    """

    def stop(signum: int, frame: FrameType | None) -> None:
        signal.signal(signum, signal.SIG_IGN)
        script.write_text(f"#!/bin/sh\nexit {EXIT_TERMINATED}\n")
        with contextlib.suppress(FileNotFoundError, ValueError, ProcessLookupError):
            os.kill(int(script.with_name(_TASK_PID).read_text()), signum)

    signal.signal(signal.SIGTERM, stop)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except RuntimeError as error:  # how KFP says that a task failed
        print(f"pipeline: {error}", flush=True)
        stopped = signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
        sys.exit(EXIT_TERMINATED if stopped else 1)
