"""What the user typed, for hints that can be typed in turn."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterable


def program() -> str:
    """What this program was called by: `shardline`, `.venv/bin/shardline`, `python -m ...`."""
    path = sys.argv[0]
    if os.path.basename(path) == "main.py":
        return f"{shlex.quote(sys.orig_argv[0])} -m shardline.pipelines.cli.main"
    name = os.path.basename(path)
    found = shutil.which(name)
    # Of a name that is found in PATH the system hands on the whole path.
    return name if found and os.path.isabs(path) and os.path.samefile(found, path) else shlex.quote(path)


def command_line(
    command: str, config: str, *, overrides: Iterable[str] | None, root: str | None, leave_out: str | None = None
) -> str:
    """The line that calls `command` with the options that were given.

    Args:
        leave_out: the key of a `--set` to drop.
    """
    words = [command, config]
    for override in overrides or ():
        if override.partition("=")[0].strip() != leave_out:
            words += ["--set", override]
    if root is not None:
        words += ["--root", root]
    return f"{program()} {shlex.join(words)}"
