"""Shows on stderr how far a run is, while it runs: bars on a terminal, a line now and then elsewhere.

A thread of its own reads the run folder, as any other program could. It only looks: storage that fails for a moment
costs a picture, never the run.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from shardline.components.common.errors import ShardlineError
from shardline.components.common.runfolder import STATUS_FILE, read_json
from shardline.components.common.storage import Storage
from shardline.components.common.streams import StreamReader
from shardline.pipelines.progress import Progress, Row, duration

_LOCAL_POLL_SECONDS = 0.3
_REMOTE_POLL_SECONDS = 2.0
_LINE_SECONDS = 10.0


class Display(Protocol):
    def note(self, line: str) -> None:
        """Show a line that stays."""

    def show(self, rows: Iterable[Row]) -> None:
        """Show how far the steps are."""

    def close(self) -> None: ...


class Watcher:
    """Shows the steps `steps` of the run in `run` for the length of a `with` block."""

    def __init__(self, run: Storage, steps: Iterable[str]) -> None:
        self._run = run
        self._progress = Progress(steps)
        self._events = StreamReader(run.at("events"))
        self._stale: object = None
        console = Console(stderr=True)
        self._display: Display = BarDisplay(console) if console.is_terminal else LineDisplay(console)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="watch", daemon=True)

    @property
    def running_step(self) -> str | None:
        """The step that has begun and has not ended."""
        row = self._progress.running
        return row.name if row else None

    @property
    def last_step(self) -> str | None:
        """The last step that has begun."""
        row = self._progress.last
        return row.name if row else None

    def __enter__(self) -> Watcher:
        with contextlib.suppress(ShardlineError):
            self._events.new()  # what an earlier process left
            self._stale = read_json(self._run, STATUS_FILE)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._look()
        self._display.close()

    def _loop(self) -> None:
        seconds = _LOCAL_POLL_SECONDS if self._run.is_local else _REMOTE_POLL_SECONDS
        while not self._ended.wait(seconds):
            self._look()

    def _look(self) -> None:
        with contextlib.suppress(ShardlineError):
            for record in self._events.new():
                line = self._progress.apply(record)
                if line is not None:
                    self._display.note(line)
                # A step that began and ended since the last look is shown all the same.
                self._display.show(self._progress.rows.values())
            status = read_json(self._run, STATUS_FILE)
            if status is not None and status != self._stale:
                self._progress.update(status)
            self._display.show(self._progress.rows.values())


class BarDisplay:
    """A bar for each step that has begun."""

    def __init__(self, console: Console) -> None:
        self._bars = Bars(
            TextColumn("{task.description:<8}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]:<6}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[text]}", markup=False),
            console=console,
        )
        self._ids: dict[str, TaskID] = {}
        self._bars.start()

    def note(self, line: str) -> None:
        self._bars.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def show(self, rows: Iterable[Row]) -> None:
        for row in rows:
            if row.state == "waiting":
                continue
            if row.name not in self._ids:
                self._ids[row.name] = self._bars.add_task(row.name, total=None, text="", unit="")
            task = self._ids[row.name]
            if row.state == "running":
                self._bars.update(task, total=row.total, completed=row.done, text=row.text, unit=row.unit)
            else:
                done = row.done if row.total else int(row.state == "done")
                text = row.text if row.state == "done" else row.state
                self._bars.update(task, total=row.total or 1, completed=done, text=text)
                self._bars.stop_task(task)

    def close(self) -> None:
        self._bars.stop()


class LineDisplay:
    """A line when a step begins and ends, and every ten seconds in between."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._states: dict[str, str] = {}
        self._shown: dict[str, str] = {}
        self._began: dict[str, float] = {}
        self._last = 0.0

    def note(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def show(self, rows: Iterable[Row]) -> None:
        now = time.monotonic()
        for row in rows:
            changed = self._states.get(row.name, "waiting") != row.state
            if changed:
                self._states[row.name] = row.state
                self._began.setdefault(row.name, now)
            due = row.state == "running" and now - self._last >= _LINE_SECONDS and row.line != self._shown.get(row.name)
            if changed or due:
                self._last, self._shown[row.name] = now, row.line
                ended = f" in {duration(now - self._began[row.name])}" if row.state == "done" else ""
                self.note(row.line + ended)

    def close(self) -> None:
        pass
