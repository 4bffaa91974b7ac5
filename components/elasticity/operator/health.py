"""Whether this process is well, for the probes of its pod: 200 or 503 at any path. Called by `serve`."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from shardline.components.common.errors import EnvironmentLacking


class Health:
    """Answers on a port; well as long as it hears a `beat` every `silence` seconds, and before the first one.

    Args:
        port: 0 is none at all.

    Raises:
        EnvironmentLacking: the port is taken.
    """

    def __init__(self, *, port: int, silence: float) -> None:
        self._silence = silence
        self._beat: float | None = None
        if not port:
            return
        try:
            server = ThreadingHTTPServer(("", port), self._handler())
        except OSError as error:
            raise EnvironmentLacking(f"cannot be listened on: {error.strerror}", where=f"--port {port}") from error
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, name="health", daemon=True).start()

    def beat(self) -> None:
        self._beat = time.monotonic()

    @property
    def is_well(self) -> bool:
        return self._beat is None or time.monotonic() - self._beat < self._silence

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        health = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200 if health.is_well else 503)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        return Handler
