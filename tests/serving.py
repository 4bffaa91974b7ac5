"""A server of this process, for the length of a `with` block. Called by the tests."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from socketserver import BaseServer
from typing import TypeVar

_Server = TypeVar("_Server", bound=BaseServer)


@contextlib.contextmanager
def serving(server: _Server) -> Iterator[_Server]:
    """Have `server`, which is bound, answer requests; afterwards it is closed."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
