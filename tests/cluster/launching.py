"""A launcher as a process of its own, started by the tests: `python -m tests.cluster.launching CONFIG WORKFLOW [END]`.

It is a step of the Workflow of that name. With END it ends itself: see `Death`. A Lease lasts for seconds here, so that
a successor need not wait, and each look at the job shows a line.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from shardline.components.common import config as configs
from shardline.components.common.errors import ShardlineError, Stopped
from shardline.components.common.kubernetes.client import Client
from shardline.components.common.kubernetes.refusals import Request
from shardline.components.common.kubernetes.transport import Transport
from shardline.components.common.processes import raise_on_signals
from shardline.components.common.storage import Storage
from shardline.components.elasticity import cluster, launcher, lock, workflow

lock.LEASE_SECONDS = 3
launcher._PROGRESS_SECONDS = 0.0


class Death:
    """Ends this process before or after a call to the API server or the run folder, the first one from a place.

    Args:
        signum: what it sends itself.
        points: a file of the points at which it, or one before it, did so: there it goes on.
        when: "always", or "terminated": only once it was sent a SIGTERM.
    """

    def __init__(self, signum: int, points: Path, when: str) -> None:
        self._signum, self._path, self._when = signum, points, when
        self._lock = threading.Lock()
        self._points = set(points.read_text().splitlines()) if points.exists() else set()
        self.terminated = False

    def around(self, what: str, call: Callable[[], Any]) -> Any:
        place = _place(sys._getframe(2))
        self._at(f"before {what} in {place}")
        try:
            return call()
        finally:
            self._at(f"after {what} in {place}")

    def _at(self, point: str) -> None:
        with self._lock:
            if point in self._points or (self._when == "terminated" and not self.terminated):
                return
            self._points.add(point)
            with self._path.open("a") as file:
                file.write(f"{point}\n")
                file.flush()
                os.fsync(file.fileno())
        os.kill(os.getpid(), self._signum)


def _place(frame: FrameType | None) -> str:
    """The functions of this package that a call comes from."""
    names: list[str] = []
    while frame is not None:
        if "/components/elasticity/" in frame.f_code.co_filename:
            names.append(frame.f_code.co_name)
        frame = frame.f_back
    return " ".join(reversed(names))


class MortalTransport(Transport):
    """A connection whose calls are those that `death` looks at."""

    death: Death

    def answer(self, request: Request, method: str, **given: Any) -> Any:
        asked = super().answer
        # A Workflow has another name each time; all else that has one is of the run.
        name = "" if request.kind.name in ("Event", "Workflow") else request.name or ""
        return self.death.around(
            f"{method} {request.kind.name} {name}".strip(), lambda: asked(request, method, **given)
        )


class MortalFolder(Storage):
    """A folder; so too."""

    def __init__(self, url: str, death: Death) -> None:
        super().__init__(url)
        self._death = death

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name.startswith("_") or name in ("at", "url", "url_of", "local_path") or not callable(found):
            return found
        return lambda *given, **named: self._death.around(f"{name} {given[0]}", lambda: found(*given, **named))


def main(path: str, name: str, end: str | None = None) -> int:
    raise_on_signals()
    transport, death = Transport.connect(patience=60.0), None
    if end is not None:
        told = json.loads(end)
        death = Death(told["signum"], Path(told["points"]), told["when"])
        transport = MortalTransport.connect(patience=60.0)
        transport.death = death
        _note_sigterm(death)
    try:
        loaded = configs.load(path, overrides=(), root=None)
        client = Client(transport, namespace=loaded.config.kubernetes.namespace)
        step_of = client.get(workflow.KIND, name)
        wanted = cluster.launch_of(client, loaded, step_of=step_of, identity=f"launcher-{os.getpid()}")
        if death is not None:
            object.__setattr__(wanted, "run", MortalFolder(wanted.run.url, death))
        launcher.launch(client, wanted)
    except (ShardlineError, Stopped) as error:
        print(error, file=sys.stderr, flush=True)
        return error.exit_code
    return 0


def _note_sigterm(death: Death) -> None:
    handle: Any = signal.getsignal(signal.SIGTERM)

    def note(signum: int, frame: FrameType | None) -> None:
        death.terminated = True
        handle(signum, frame)

    signal.signal(signal.SIGTERM, note)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
