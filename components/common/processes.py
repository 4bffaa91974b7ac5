"""No orphans, and signals that end a process in order.

Called first thing by every process that another one starts. A started process watches the one that started it, also
through a shell in between, and ends at once when that one is gone: nothing is left over from a `kill -9`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from shardline.components.common.errors import Stopped

PARENT_VARIABLE = "SHARDLINE_PARENT"
_POLL_SECONDS = 0.5
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
#: Ctrl-C reaches a process from the terminal and as its parent's SIGTERM: within this time it is one request.
SAME_SIGNAL_SECONDS = 1.0


def start_time(pid: int) -> str | None:
    """When process `pid` began, in the kernel's clock ticks; None when there is no such process.

    With the process id it names a process for good, as ids are used again. Where there is no /proc the answer is "?".
    """
    if not Path("/proc/self/stat").exists():
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except PermissionError:
            pass
        return "?"
    try:
        # The name in parentheses may hold anything; what follows the last ")" is fixed: field 3 is the state.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else fields[19]


def child_environment(**extra: str) -> dict[str, str]:
    """The environment for a process that shall end with this one."""
    return {**os.environ, PARENT_VARIABLE: f"{os.getpid()}:{start_time(os.getpid())}", **extra}


def die_with_parent(*, thread: bool = True) -> None:
    """End this process when its parent ends, or the process that SHARDLINE_PARENT names: the one above a shell.

    Args:
        thread: False in a process that is to have none, and sees by itself that its parent is gone: the kernel alone
            then ends it, where it can.
    """
    parent = os.getppid()
    watched = {parent: start_time(parent)}
    if token := os.environ.get(PARENT_VARIABLE):
        pid, _, started = token.partition(":")
        watched[int(pid)] = started
    if sys.platform == "linux":
        # The kernel does it at once, even to a process that hangs; the thread also sees through a shell in between.
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if thread:
        threading.Thread(target=_watch, args=(watched,), name="parent-watch", daemon=True).start()


def name_this_process(name: str) -> None:
    """Give this process, in lists of processes by their short names, the first 15 letters of `name`."""
    if sys.platform == "linux":
        _prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()))


def _prctl(option: int, argument: Any) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, argument)


def _watch(watched: dict[int, str | None]) -> None:
    while all(started is not None and start_time(pid) == started for pid, started in watched.items()):
        time.sleep(_POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


def raise_on_signals() -> None:
    """Turn SIGTERM and SIGINT into `Stopped`, raised in the main thread, so that what is open gets closed.

    A later signal ends the process at once: whoever sends it will not wait, or the first one got lost in a place that
    no exception leaves, such as a finaliser.
    """
    first: list[float] = []

    def stop(signum: int, frame: FrameType | None) -> None:
        if not first:
            first.append(time.monotonic())
            raise Stopped("interrupted" if signum == signal.SIGINT else "terminated", signum=signum)
        if time.monotonic() - first[0] > SAME_SIGNAL_SECONDS:
            os._exit(128 + signum)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
