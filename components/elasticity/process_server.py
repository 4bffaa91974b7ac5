"""A process that has imported what workers need, and makes them by forking itself: in hundredths of a second.

Started by `Processes`, an agent's side of it, with one socket between them. Lines of JSON come in: `start`, with the
workers' descriptions and the environment that they get, and `signal`, for all workers that run. Lines go out: that it
is `ready`, and for each worker that it has `started`, and that has `ended`. It ends with the agent, and the workers end
with it.

It starts no thread and touches no device, as neither outlives a fork.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from select import select
from types import FrameType
from typing import Any

from shardline.components.common.errors import EXIT_PEER_LOST
from shardline.components.common.processes import die_with_parent, name_this_process
from shardline.components.elasticity import worker_main
from shardline.components.elasticity.channel import Channel

#: What Python is given to start it. There follow: the number of the socket, the module to import, and for whoever
#: looks for a run's processes, its URL.
COMMAND = ("-m", "shardline.components.elasticity.process_server")

#: Libraries that would start threads of their own when they are imported.
NO_THREADS = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
#: Without it memory falls to pieces where the shapes of steps change; what is set already stands.
_ALLOCATOR = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
#: What torch imports for itself when a DTensor is first used: seconds of every worker's first step.
_IMPORTED_LATE = ("torch._dynamo",)
_DECIDED_BY_THE_AGENT = (signal.SIGTERM, signal.SIGINT)
_BYTES_A_READ = 1 << 16


def environment_for(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a server whose workers are to have `environment`."""
    return {**NO_THREADS, **_ALLOCATOR, **environment}


class Server:
    """The workers that an agent asks for over `channel`."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._ranks: dict[int, int] = {}
        self._woken, self._waker = os.pipe()
        for end in (self._woken, self._waker):
            os.set_blocking(end, False)

    def serve(self) -> dict[str, Any] | None:
        """Do as the agent asks until it is gone: None. In a new worker: returns at once, with its description."""
        self._say(ready=True)
        waited: list[Channel | int] = [self._channel, self._woken]
        with self._signals_held():
            while True:
                readable, _, _ = select(waited, [], [])
                if self._woken in readable:
                    os.read(self._woken, _BYTES_A_READ)
                    self._reap()
                if self._channel in readable:
                    requests = self._channel.receive()
                    if requests is None:
                        return None
                    for request in requests:
                        description = self._do(request)
                        if description is not None:
                            return description

    def _do(self, request: dict[str, Any]) -> dict[str, Any] | None:
        if "signal" in request:
            for pid in self._ranks:
                os.kill(pid, request["signal"])
            return None
        for place in request["places"]:
            try:
                pid = os.fork()
            except OSError as error:
                print(f"a worker could not be started: {error}", file=sys.stderr, flush=True)
                self._say(ended=int(place["RANK"]), pid=0, exit_code=EXIT_PEER_LOST)
                continue
            if pid == 0:
                self._leave()
                os.environ.clear()
                os.environ.update(request["environment"] | place)
                return dict(request["start"])
            self._ranks[pid] = int(place["RANK"])
            self._say(started=self._ranks[pid], pid=pid)
        return None

    def _leave(self) -> None:
        """In a worker: keep nothing that is the server's."""
        self._channel.close()
        os.close(self._woken)
        os.close(self._waker)

    def _reap(self) -> None:
        while self._ranks:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            # A process that a worker left behind comes to the one above the server, not here.
            rank = self._ranks.pop(pid)
            self._say(ended=rank, pid=pid, exit_code=os.waitstatus_to_exitcode(status))

    def _say(self, **message: int) -> None:
        with contextlib.suppress(ConnectionError):  # the agent is gone: the next read tells
            self._channel.send(**message)

    @contextlib.contextmanager
    def _signals_held(self) -> Iterator[None]:
        """Signals that a terminal sends to all are the agent's to answer; a worker has them as any process does."""

        def ignore(signum: int, frame: FrameType | None) -> None:
            pass  # what the signal has to say comes by the pipe

        for each in _DECIDED_BY_THE_AGENT:
            signal.signal(each, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, ignore)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)


def main(arguments: Sequence[str]) -> int:
    """Serve; in a worker: do what it is for."""
    descriptor, module, *_ = arguments
    die_with_parent(thread=False)
    # What cannot be imported is a worker's to tell, in its log and its record.
    with contextlib.suppress(Exception):
        for name in (module, *_IMPORTED_LATE):
            importlib.import_module(name)
    # What is there now is never collected, so that no worker comes to own a page by looking at it.
    gc.collect()
    gc.freeze()
    description = Server(Channel(socket.socket(fileno=int(descriptor)))).serve()
    if description is None:
        return 0
    name_this_process(f"rank {os.environ['RANK']}")
    return worker_main.main(description)


if __name__ == "__main__":
    # torch's threads must not hold a process that has said all it has to say.
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
