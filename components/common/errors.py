"""Every error that a person is meant to read, with the exit code that a process leaves with.

Called by everything. An error says what is wrong (`message`), where (`where`: a config key, a file, a URL) and what to
do (`hint`). Anything that is neither a `ShardlineError` nor `Stopped` is a bug and is shown with its traceback.

    ShardlineError
    ├── UserError            2   bad config or bad input
    │   └── ConfigError      2   one or more keys of the run config
    ├── EnvironmentLacking   3   something to install, to grant or to free
    ├── GateRefused          4   the promotion gate said no
    ├── DamagedData          5   a shard, an index, a manifest or a checkpoint is not what was written
    ├── PeerLost           175   another process of the run, or the storage, is gone: worth a retry
    │   ├── StorageLost    175
    │   ├── Superseded     175   another process has taken the run over: this one may write no more
    │   ├── RolledBack     175   training has to begin again from an earlier checkpoint, as it decided
    │   └── Regrouped      175   the workers saved and ended, for a group of another size to go on
    └── DeviceFault        176   a device or its node is suspect
        └── NodeSetAside   176   this node is one that runs do without
    Stopped                130   the user stopped it (143: SIGTERM)
"""

from __future__ import annotations

import os
import signal
import traceback
from typing import Any

EXIT_BUG = 1
EXIT_USER = 2
EXIT_ENVIRONMENT = 3
EXIT_GATE = 4
EXIT_DAMAGED = 5
EXIT_INTERRUPT = 128 + signal.SIGINT
EXIT_TERMINATED = 128 + signal.SIGTERM
EXIT_PEER_LOST = 175
EXIT_DEVICE_FAULT = 176

#: The exit codes of an end that somebody asked for, which is no failure.
EXITS_STOPPED = (EXIT_INTERRUPT, EXIT_TERMINATED)

#: The exit codes of what would only come again: a bug, a mistake, something that is lacking, the gate, damage.
FINAL_EXIT_CODES = (EXIT_BUG, EXIT_USER, EXIT_ENVIRONMENT, EXIT_GATE, EXIT_DAMAGED)

#: Below this a failure is final; from it on a new attempt is worth making, as PyTorchJob's ExitCode policy has it.
FIRST_RETRYABLE = 128


class ShardlineError(Exception):
    """An error with a place and a remedy.

    Args:
        message: what is wrong, in one sentence without a full stop.
        where: the config key, file or URL that it is about.
        hint: what to do about it.
    """

    exit_code = EXIT_BUG

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text}; {self.hint}" if self.hint else text


class UserError(ShardlineError):
    exit_code = EXIT_USER


class ConfigError(UserError):
    """One or more problems of the run config, each a complete message of its own."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class EnvironmentLacking(ShardlineError):
    exit_code = EXIT_ENVIRONMENT


class GateRefused(ShardlineError):
    exit_code = EXIT_GATE


class DamagedData(ShardlineError):
    exit_code = EXIT_DAMAGED


class Stopped(BaseException):
    """The user or the platform asked for an end.

    No `Exception`: what goes on after any error, as libraries do in places, must not go on after this one. `hint` says
    what goes on from where.
    """

    def __init__(self, message: str, *, signum: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.message = message
        self.hint = "the same command goes on from here"
        self.exit_code = 128 + signum


class StopRequested(Stopped):
    """`shardline stop`: the workers have saved and end, and are not started again."""


class PeerLost(ShardlineError):
    exit_code = EXIT_PEER_LOST


class StorageLost(PeerLost):
    pass


class Superseded(PeerLost):
    pass


class RolledBack(PeerLost):
    pass


class Regrouped(PeerLost):
    pass


class SnapshotLost(PeerLost):
    pass


class DeviceFault(ShardlineError):
    exit_code = EXIT_DEVICE_FAULT


class NodeSetAside(DeviceFault):
    pass


def exit_code_of(error: BaseException) -> int:
    """The exit code a process leaves with when `error` ends it."""
    if isinstance(error, ShardlineError | Stopped):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPT
    return EXIT_BUG


def to_record(error: BaseException) -> dict[str, Any]:
    """`error` as JSON, for the run folder: what the parent process shows and exits with."""
    record: dict[str, Any] = {"type": type(error).__name__, "message": str(error), "exit_code": exit_code_of(error)}
    if record["exit_code"] == EXIT_BUG:
        record["traceback"] = "".join(traceback.format_exception(error))
    return record


class RecordedError(ShardlineError):
    """An error that another process met and left as a record."""

    def __init__(self, record: dict[str, Any]) -> None:
        super().__init__(str(record.get("message", "unknown error")))
        self.exit_code = int(record.get("exit_code", EXIT_BUG))
        self.traceback_text: str | None = record.get("traceback")


def from_record(record: dict[str, Any]) -> ShardlineError:
    """The error that `to_record` put down, of the same class where that is one of those above."""
    peers = (PeerLost, StorageLost, Superseded, RolledBack, Regrouped)
    kinds = (UserError, EnvironmentLacking, DamagedData, *peers, DeviceFault)
    found = next((kind for kind in kinds if kind.__name__ == record.get("type")), None)
    return found(str(record["message"])) if found else RecordedError(record)


def from_os_error(error: OSError, where: str) -> ShardlineError:
    """What an operating-system error on a path or URL means to the user."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    if isinstance(error, FileNotFoundError):
        return UserError("not found", where=where)
    if isinstance(error, PermissionError) or error.errno in _READ_ONLY:
        return EnvironmentLacking(
            f"cannot be used: {reason}", where=where, hint="grant access to it, or name another place"
        )
    if error.errno in FULL:
        return EnvironmentLacking(f"cannot be written: {reason}", where=where, hint="free some space and run it again")
    return StorageLost(f"storage failed: {error}", where=where)


_READ_ONLY = {30, 20, 21}  # EROFS, ENOTDIR, EISDIR: the same numbers on Linux and macOS
#: There is no room: ENOSPC, EDQUOT on macOS, EDQUOT on Linux.
FULL = {28, 69, 122}
