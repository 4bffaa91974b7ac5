"""How long, and how often, storage that fails for a moment is asked again: the one policy for every back end.

Called by the back ends. Owns the waits (exponential back-off with "equal jitter": Brooker, "Exponential Backoff And
Jitter", AWS Architecture Blog 2015), the time limit, and what counts as a failure of the moment. `attempt` lets the
last error out when the time is up; `explaining.explained` gives it its form.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from shardline.components.common.errors import ConfigError, ShardlineError

SECONDS_VARIABLE = "SHARDLINE_STORAGE_SECONDS"
DEFAULT_SECONDS = 120.0
_FIRST_WAIT = 0.1
_LONGEST_WAIT = 10.0
#: A file that is known to be there and can't be found: a store that has just failed over finds it after a moment.
_ABSENT_SECONDS = 5.0

_TRANSIENT_STATUS = {408, 429, 500, 502, 503, 504}
_TRANSIENT_CODES = {
    "ConditionalRequestConflict",
    "InternalError",
    "OperationAborted",
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequests",
}
#: By name, as the packages that these come from need not be installed.
_TRANSIENT_KINDS = {
    ("aiohttp", "ClientConnectionError"),
    ("aiohttp", "ClientPayloadError"),
    ("botocore", "ConnectionError"),
    ("botocore", "FlexibleChecksumError"),
    ("botocore", "HTTPClientError"),
    ("botocore", "ResponseParserError"),
    ("urllib3", "IncompleteRead"),
}
_TRANSIENT_ERRNO = {errno.ECONNRESET, errno.ECONNREFUSED, errno.EPIPE, errno.ETIMEDOUT, errno.EHOSTUNREACH}

_log = logging.getLogger("shardline.storage")
_made = 0

T = TypeVar("T")


class ShortRead(OSError):
    """Fewer bytes came than the file has there."""


def limit() -> float:
    """The seconds for which a failing request is repeated: SHARDLINE_STORAGE_SECONDS, or 120.

    Raises:
        ConfigError: the variable holds no number, or one below zero.
    """
    text = os.environ.get(SECONDS_VARIABLE)
    try:
        seconds = DEFAULT_SECONDS if text is None else float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise ConfigError([f"{SECONDS_VARIABLE}: {text!r} is no number of seconds; set it to one, or unset it"])
    return seconds


def made() -> int:
    """How many requests this process has repeated so far."""
    return _made


def attempt(call: Callable[[], T], *, absent: bool = False) -> T:
    """What `call` returns, repeated while it fails for a moment and time is left.

    Args:
        call: may be run any number of times.
        absent: the file is known to be there, so that a `FileNotFoundError` is worth some seconds too.
    """
    seconds = limit()
    started = time.monotonic()
    waits = _waits()
    while True:
        try:
            return call()
        except Exception as error:
            if absent and isinstance(error, FileNotFoundError):
                allowed = min(_ABSENT_SECONDS, seconds)
            elif is_transient(error):
                allowed = seconds
            else:
                raise
            wait = next(waits)
            if time.monotonic() - started + wait > allowed:
                raise
            note(str(error), wait)
        time.sleep(wait)


def wait_before(attempts: int, *, since: float) -> float | None:
    """The seconds to wait after `attempts` failed attempts, the first at `since` (monotonic); None: give up."""
    wait = _wait(attempts)
    return wait if time.monotonic() - since + wait <= limit() else None


def note(reason: str, wait: float) -> None:
    """Count and log one repetition."""
    global _made
    _made += 1
    _log.info("storage failed, asked again in %.1f s: %s", wait, reason)


def _waits() -> Iterator[float]:
    attempts = 0
    while True:
        attempts += 1
        yield _wait(attempts)


def _wait(attempts: int) -> float:
    # Never near nothing, as full jitter would have it now and then: a throttled store would be asked at once.
    longest = min(_LONGEST_WAIT, _FIRST_WAIT * 2.0 ** min(attempts - 1, 30))
    return random.uniform(longest / 2, longest)


def is_transient(error: BaseException | None) -> bool:
    """Whether `error`, or what it came from, may be gone a moment later."""
    while error is not None and not isinstance(error, ShardlineError):
        if isinstance(error, ShortRead | TimeoutError | ConnectionError | asyncio.TimeoutError):
            return True
        if isinstance(error, OSError) and error.errno in _TRANSIENT_ERRNO and error.__cause__ is None:
            return True
        if kinds_of(error) & _TRANSIENT_KINDS:
            return True
        response = getattr(error, "response", None)
        if isinstance(response, dict) and is_transient_answer(response):
            return True
        if getattr(error, "status", None) in _TRANSIENT_STATUS:
            return True
        error = error.__cause__
    return False


def is_transient_answer(response: dict[str, object]) -> bool:
    """The same of an answer of S3's client, parsed."""
    metadata, problem = response.get("ResponseMetadata"), response.get("Error")
    status = metadata.get("HTTPStatusCode") if isinstance(metadata, dict) else None
    code = problem.get("Code") if isinstance(problem, dict) else None
    return status in _TRANSIENT_STATUS or code in _TRANSIENT_CODES


def kinds_of(error: BaseException) -> set[tuple[str, str]]:
    """The names of the error's classes with the packages that they come from, which need not be installed."""
    return {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(error).__mro__}
