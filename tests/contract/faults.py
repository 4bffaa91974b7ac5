"""An HTTP proxy that does harm on purpose, in front of a real server.

Called by the tests of faults. A test gives rules; the first that fits a request is used, as often as its count says,
and then the requests pass unharmed.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import struct
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.serving import serving

ERROR = "<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code} on purpose</Message></Error>"


@dataclass
class Rule:
    """What happens to the requests of `method` whose path and query hold `holding`, the first `times` of them.

    `kind` is `answer` (with `status` and the error code `code`, the server is not asked), `reset` (no answer, the
    server is not asked), `lost` (the server does it, the answer gets lost), `cut` (half of the body comes), `slow` (by
    `seconds`), or `change` (`change` makes another body of the server's).
    """

    kind: str
    method: str = ""
    holding: str = ""
    times: int = 1_000_000
    status: int = 503
    code: str = "SlowDown"
    seconds: float = 0.0
    change: Callable[[bytes], bytes] = bytes
    met: int = 0

    def takes(self, method: str, path: str) -> bool:
        if self.met >= self.times or self.method not in ("", method) or self.holding not in path:
            return False
        self.met += 1
        return True


@dataclass
class Proxy:
    """Its `address`, the rules, and the requests that came, as `GET /path?query`."""

    address: str
    rules: list[Rule] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def rule_for(self, method: str, path: str) -> Rule | None:
        with self.lock:
            self.requests.append(f"{method} {path}")
            return next((rule for rule in self.rules if rule.takes(method, path)), None)


@contextlib.contextmanager
def proxy(server: str, *, prefix: str = "") -> Iterator[Proxy]:
    """A proxy before `server`; a path has to begin with `prefix`, which is taken off."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            _serve(self, server, prefix, found)

        do_PUT = do_POST = do_DELETE = do_HEAD = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listener.daemon_threads = True
    found = Proxy(f"http://127.0.0.1:{listener.server_address[1]}{prefix}")
    with serving(listener):
        yield found


def _serve(handler: BaseHTTPRequestHandler, server: str, prefix: str, found: Proxy) -> None:
    body = _body(handler)
    if not handler.path.startswith(prefix + "/"):
        _send(handler, 404, {}, ERROR.format(code="NoSuchPrefix").encode())
        return
    path = handler.path.removeprefix(prefix)
    rule = found.rule_for(handler.command, path)
    kind = rule.kind if rule else "pass"
    if rule and kind == "answer":
        _send(handler, rule.status, {"content-type": "application/xml"}, ERROR.format(code=rule.code).encode())
    elif kind == "reset":
        _reset(handler)
    else:
        if rule and kind == "slow":
            time.sleep(rule.seconds)
        status, headers, answer = _forward(handler, server, path, body)
        if kind == "lost":
            _reset(handler)
        elif kind == "cut":
            _send(handler, status, headers, answer, sent=len(answer) // 2)
        else:
            _send(handler, status, headers, rule.change(answer) if rule and kind == "change" else answer)


def _body(handler: BaseHTTPRequestHandler) -> bytes:
    if handler.headers.get("transfer-encoding") != "chunked":
        return handler.rfile.read(int(handler.headers.get("content-length") or 0))
    parts = []
    while size := int(handler.rfile.readline().split(b";")[0], 16):
        parts.append(handler.rfile.read(size))
        handler.rfile.readline()
    while handler.rfile.readline().strip():
        pass
    return b"".join(parts)


def _forward(handler: BaseHTTPRequestHandler, server: str, path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
    dropped = {"transfer-encoding", "content-length", "connection", "expect"}
    headers = {name: value for name, value in handler.headers.items() if name.lower() not in dropped}
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(server).netloc, timeout=60)
    with contextlib.closing(connection):
        connection.request(handler.command, path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        kept = {name: value for name, value in answer.getheaders() if name.lower() not in dropped}
        if handler.command == "HEAD":
            kept["content-length"] = answer.headers.get("content-length") or "0"
        return answer.status, kept, content


def _send(
    handler: BaseHTTPRequestHandler, status: int, headers: dict[str, str], body: bytes, *, sent: int | None = None
) -> None:
    handler.send_response_only(status)
    for name, value in {"content-length": str(len(body)), **headers}.items():
        handler.send_header(name, value)
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(body if sent is None else body[:sent])
    if sent is not None:
        _reset(handler)


def _reset(handler: BaseHTTPRequestHandler) -> None:
    """End the connection with a reset, as a server that dies does."""
    handler.wfile.flush()
    handler.close_connection = True
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.shutdown(socket.SHUT_RD)
