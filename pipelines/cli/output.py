"""What commands print: data to stdout, everything else to stderr, an error as one message and an exit code."""

from __future__ import annotations

import json
import sys
from typing import Any

from shardline.components.common.errors import (
    EXIT_BUG,
    RecordedError,
    ShardlineError,
    Stopped,
)


def print_json(value: Any) -> None:
    """`value` to stdout, for programs; numbers that JSON cannot hold as strings."""
    from shardline.components.common.streams import jsonable

    print(json.dumps(jsonable(value), indent=2, ensure_ascii=False))


def print_table(rows: list[tuple[str, str]]) -> None:
    """Names and values to stdout, for people."""
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")


def note(text: str) -> None:
    """A line for the person at the terminal, to stderr."""
    print(text, file=sys.stderr, flush=True)


def show_error(error: ShardlineError | Stopped) -> int:
    """Say on stderr what is wrong, one line for each problem; returns the exit code."""
    if isinstance(error, RecordedError) and error.exit_code == EXIT_BUG and error.traceback_text:
        note(error.traceback_text.rstrip())
    if isinstance(error, Stopped):
        note(f"{error.message}; {error.hint}")
    else:
        for line in str(error).splitlines():
            note(f"error: {line}")
    for line in getattr(error, "__notes__", []):
        note(line)
    return error.exit_code
