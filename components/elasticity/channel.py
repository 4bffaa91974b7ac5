"""What an agent and the server of its workers say to each other: JSON objects over a socket, a line each.

Called by `processes` and `process_server`.
"""

from __future__ import annotations

import json
import socket
from typing import Any

_BYTES_A_READ = 1 << 16


class Channel:
    """One end; it may be given to `select`."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._received = b""

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, **message: Any) -> None:
        """Raises OSError when the other end is gone."""
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[dict[str, Any]] | None:
        """What has come, waiting until something has; None when the other end is gone."""
        try:
            data = self._socket.recv(_BYTES_A_READ)
        except OSError:
            data = b""
        if not data:
            return None
        *lines, self._received = (self._received + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        self._socket.close()
