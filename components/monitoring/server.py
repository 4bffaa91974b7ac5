"""Serves what a training pod exposes, over HTTP from threads of its own: `/metrics`, `/healthz` and `/readyz`.

Called by whatever has an agent. It is beside training and never in its way: a port that is taken, a folder that cannot
be made and a client that hangs cost numbers, with one line that says so, and nothing else.

`/healthz` asks for the agent's loop alone, whatever the workers are at: they may load or compile for hours.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from shardline.components.common import vitals
from shardline.components.common.config import RunConfig
from shardline.components.monitoring.exposition import Standing, TrainingCollector, registry_of

#: A client that says nothing for so many seconds is let go.
_CLIENT_SECONDS = 10.0
_POLL_SECONDS = 0.1


@contextlib.contextmanager
def serving(
    run: str, *, port: int, standing: Callable[[], Standing] | None, patience: float = 600.0
) -> Iterator[int | None]:
    """Have the workers that are started in the block show their vitals, and serve them; gives the port.

    It is another one when `port` is taken, and None when there is none to be had, or `port` is 0: nothing is then
    collected either.

    Args:
        standing: of the agent, asked from other threads; None for one that tells nothing of itself.
        patience: seconds without a round of the agent's loop, after which `/healthz` says that it hangs.
    """
    with contextlib.ExitStack() as stack:
        server = _bound(port) if port else None
        if server is None:
            yield None
            return
        stack.callback(server.server_close)
        server.registry = registry_of(TrainingCollector(run, folder=_folder(stack), standing=standing))
        server.standing, server.patience = standing, patience
        thread = threading.Thread(target=server.serve_forever, args=(_POLL_SECONDS,), name="metrics", daemon=True)
        thread.start()
        stack.callback(thread.join)
        stack.callback(server.shutdown)
        yield server.server_port


def serving_local(config: RunConfig) -> contextlib.AbstractContextManager[int | None]:
    """As `serving`, for an agent on this machine that is asked for by `monitoring.port`."""
    return serving(config.run, port=config.monitoring.local_port, standing=None)


def _folder(stack: contextlib.ExitStack) -> Path | None:
    try:
        return stack.enter_context(vitals.collected())
    except OSError as error:
        _note(f"the workers' metrics are not served: no folder for temporary files: {error.strerror}")
        return None


def _bound(port: int) -> _Server | None:
    try:
        return _Server(port)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            _note(f"metrics are not served: port {port}: {error.strerror}")
            return None
    try:
        server = _Server(0)
    except OSError as error:
        _note(f"metrics are not served: port {port} is in use, and there is no other: {error.strerror}")
        return None
    _note(f"metrics are served at port {server.server_port}: {port} (monitoring.port) is in use")
    return server


def _note(line: str) -> None:
    print(f"note: {line}", file=sys.stderr, flush=True)


class _Server(ThreadingHTTPServer):
    """At `port` of every address of this machine; 0 is one that is free."""

    daemon_threads = True
    block_on_close = False
    registry: CollectorRegistry
    standing: Callable[[], Standing] | None
    patience: float

    def __init__(self, port: int) -> None:
        # One socket for both: pods of a cluster may have IPv6 alone.
        self.address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        super().__init__(("", port), _Handler)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # Not HTTPServer's, which asks for this machine's name: that may take seconds.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "", self.server_address[1]

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a client that went away is no concern of training's."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _CLIENT_SECONDS
    server_version, sys_version = "shardline", ""
    _PATHS: ClassVar = {"/metrics": "_metrics", "/healthz": "_health", "/readyz": "_readiness"}

    def do_GET(self) -> None:
        answer = self._PATHS.get(self.path.partition("?")[0])
        if answer is None:
            return self._send(404, "not found: there are /metrics, /healthz and /readyz")
        try:
            getattr(self, answer)()
        except OSError:
            raise  # the client's connection
        except Exception as error:
            self._send(500, f"{type(error).__name__}: {error}")

    do_HEAD = do_GET

    def _metrics(self) -> None:
        self._send(200, generate_latest(self.server.registry), kind=CONTENT_TYPE_PLAIN_0_0_4)

    def _health(self) -> None:
        standing = self.server.standing() if self.server.standing else None
        if standing and standing.silent > self.server.patience:
            return self._send(503, f"the agent's loop has not come round for {standing.silent:.0f} s")
        self._send(200, "ok")

    def _readiness(self) -> None:
        ready = self.server.standing is None or self.server.standing().ready
        self._send(200, "ok") if ready else self._send(503, "the agent has not met its group")

    def _send(self, status: int, body: bytes | str, *, kind: str = "text/plain; charset=utf-8") -> None:
        data = body if isinstance(body, bytes) else f"{body}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing: whoever scrapes comes again and again."""
