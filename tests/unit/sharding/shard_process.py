"""What the tests of faults run in a process of its own: `python shard_process.py WHAT CONFIG FOLDER NUMBERS`.

Makes data sets of a config, each by a process that is forked from this one, which has loaded all that they need. With
NUMBER n the storage root is FOLDER/n. Prints one line of JSON at the end.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

from shardline.components.common.config import RunConfig, load
from shardline.components.sharding.making import shard

_changes = 0


def on_change(act: Callable[[int], None]) -> None:
    """Have `act` called, from now on, before each change of a file, with its number, from 0."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        global _changes
        opened = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if opened or event in {"os.rename", "os.link", "os.remove", "os.rmdir", "os.mkdir"}:
            _changes += 1
            act(_changes - 1)

    sys.addaudithook(hook)


def start(config: RunConfig, before: Callable[[], None] | None = None) -> int:
    """A process that makes the data set, after `before`; its id."""
    child = os.fork()
    if child:
        return child
    try:
        if before:
            before()
        shard(config)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def end_of(child: int) -> int:
    """How the process ended, or the number of the signal that stopped it."""
    status = os.waitpid(child, os.WUNTRACED)[1]
    return os.WSTOPSIG(status) if os.WIFSTOPPED(status) else os.waitstatus_to_exitcode(status)


def send_itself(number: int, *, at: int) -> Callable[[], None]:
    def act(change: int) -> None:
        if change == at:
            os.kill(os.getpid(), number)

    return lambda: on_change(act)


def count(config: RunConfig) -> int:
    """How many changes of files there are on the way."""
    on_change(lambda change: None)
    shard(config)
    return _changes


def kill(config: RunConfig, number: int) -> list[int]:
    """It is killed right before change `number` of a file."""
    return [end_of(start(config, send_itself(signal.SIGKILL, at=number)))]


def cut(config: RunConfig, number: int) -> list[int]:
    """The kernel ends it at byte `number` of the first file that gets that large."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (number, number))

    return [end_of(start(config, limit))]


def pause(config: RunConfig, number: int) -> list[int]:
    """It stands still right before change `number` of a file, until another process has made the data set."""
    slow = start(config, send_itself(signal.SIGSTOP, at=number))
    found = [end_of(slow), end_of(start(config))]
    os.kill(slow, signal.SIGCONT)
    return [*found, end_of(slow)]


if __name__ == "__main__":
    what, path, folder, *numbers = sys.argv[1:]
    doing: Callable[..., Any] = {"count": count, "kill": kill, "cut": cut, "pause": pause}[what]
    roots = [(number, load(path).config.model_copy(update={"storage": f"{folder}/{number}"})) for number in numbers]
    if what == "count":
        print(json.dumps(count(roots[0][1])))
    else:
        print(json.dumps([doing(config, int(number)) for number, config in roots]))
