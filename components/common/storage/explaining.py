"""What an error of a storage client means to the user.

Called around every use of storage. Owns the translation to `ShardlineError`: no error of fsspec, botocore, aiohttp,
obstore or hdfs-native leaves the block as it came, except `FileNotFoundError` and `FileExistsError`, on which callers
decide.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from shardline.components.common.errors import EnvironmentLacking, ShardlineError, StorageLost, from_os_error
from shardline.components.common.storage.patience import kinds_of

_PASSED_ON = (FileNotFoundError, FileExistsError, ShardlineError)
#: S3's, HTTP's and obstore's clients have errors of their own; their packages may not be installed.
_CLIENTS = {"aiohttp", "botocore", "obstore"}


@contextlib.contextmanager
def explained(where: str) -> Iterator[None]:
    """Give the block's storage errors the form of a `ShardlineError` about `where`."""
    try:
        yield
    except _PASSED_ON:
        raise
    except Exception as error:
        found = _meaning(error, where)
        if found is None:
            raise
        raise found from error


def _meaning(error: Exception, where: str) -> ShardlineError | None:
    kinds = kinds_of(error)
    names = {name for _, name in kinds}
    if "RequestTimeTooSkewed" in (code_of(error), *str(error).split()):
        return EnvironmentLacking(
            "the store refuses the request as the clock of this machine is off by minutes",
            where=where,
            hint="set the clock (timedatectl set-ntp true)",
        )
    if names & {"NoCredentialsError", "PartialCredentialsError"}:
        hint = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        return EnvironmentLacking(str(error), where=where, hint=hint)
    if isinstance(error, PermissionError) or status_of(error) in {401, 403}:
        return EnvironmentLacking(
            f"cannot be used: {error}", where=where, hint="grant access to it, or name another place"
        )
    if isinstance(error, OSError):
        return from_os_error(error, where)
    if {package for package, _ in kinds} & _CLIENTS:
        return StorageLost(f"storage failed: {str(error).partition(chr(10))[0]}", where=where)
    return None


def code_of(error: BaseException | None) -> str | None:
    """The error code that S3 gave (`NoSuchKey`), from `error` or from what it came from."""
    answer = answer_of(error)
    return str(answer["Error"].get("Code")) if answer and "Error" in answer else None


def repetitions_of(error: BaseException) -> int:
    """How often S3's client had repeated the request before the answer that became `error`."""
    answer = answer_of(error) or {}
    return int(answer.get("ResponseMetadata", {}).get("RetryAttempts", 0))


def answer_of(error: BaseException | None) -> dict[str, Any] | None:
    """S3's answer, parsed, that became `error`."""
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, dict):
            return response
        error = error.__cause__
    return None


def status_of(error: BaseException) -> int | None:
    status = getattr(error, "status", None)
    return status if isinstance(status, int) else None
