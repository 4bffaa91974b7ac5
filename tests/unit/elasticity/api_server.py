"""An API server over HTTP with objects in memory, for the real client: what a board needs of one."""

from __future__ import annotations

import json
import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from benchmarks.agents.server import Objects
from shardline.components.common.kubernetes.kinds import KINDS
from shardline.components.common.kubernetes.refusals import Conflict

_KIND_OF = {kind.resource: kind.name for kind in KINDS.values()}


class ApiServer(ThreadingHTTPServer):
    """See the module.

    Attributes:
        calls: the verb and the kind of each request; watches count as such.
        silent: whether what is watched is told of no change; away: whether no request is answered as it should be.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects, self.lock = Objects(), threading.Lock()
        self.calls: list[tuple[str, str]] = []
        self.silent = self.away = False
        self.watching: set[queue.Queue[Any]] = set()

    def end_watches(self) -> None:
        for each in list(self.watching):
            each.put(None)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ApiServer

    def _answer(self) -> None:
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query))
        *_, first, second = url.path.split("/")
        resource, name = (second, None) if second in _KIND_OF else (first, second)
        kind = _KIND_OF[resource]
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        value = json.loads(body) if body else {}
        labels = dict(each.split("=") for each in query.get("labelSelector", "").split(",") if each)
        field = query.get("fieldSelector", "").removeprefix("metadata.name=") or None
        objects = self.server.objects
        if self.server.away:
            return self._send(503, {"kind": "Status", "message": "the server ends"})
        if query.get("watch"):
            self.server.calls.append(("WATCH", kind))
            return self._watch(kind, labels, field, since=int(query["resourceVersion"]))
        self.server.calls.append((self.command if name or self.command == "POST" else "LIST", kind))
        with self.server.lock:
            try:
                if self.command == "POST":
                    return self._send(201, objects.create(value))
                if self.command == "PATCH":
                    return self._found(objects.patch(kind, str(name), value), resource, name)
                if self.command == "DELETE":
                    found = {"kind": "Status"} if objects.delete(kind, str(name)) else None
                    return self._found(found, resource, name)
                if name:
                    return self._found(objects.get(kind, name), resource, name)
                items = objects.list(kind, labels, field)
                return self._send(200, {"items": items, "metadata": {"resourceVersion": str(objects.version)}})
            except Conflict as error:
                return self._send(409, {"kind": "Status", "reason": "Conflict", "message": error.message})

    do_GET = do_POST = do_PATCH = do_DELETE = _answer

    def _found(self, value: Any, resource: str, name: str | None) -> None:
        details = {"name": name, "kind": resource}
        missing = {"kind": "Status", "reason": "NotFound", "message": "not found", "details": details}
        self._send(200 if value is not None else 404, value if value is not None else missing)

    def _send(self, code: int, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _watch(self, kind: str, labels: dict[str, str], name: str | None, *, since: int) -> None:
        told: queue.Queue[Any] = queue.Queue()
        with self.server.lock:
            end = self.server.objects.watch(
                kind,
                labels=labels,
                name=name,
                since=since,
                told=lambda event, each: told.put({"type": event, "object": each}),
            )
            self.server.watching.add(told)
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.close_connection = True
        try:
            while (event := told.get()) is not None:
                if not self.server.silent:
                    data = json.dumps(event).encode() + b"\n"
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            pass
        finally:
            with self.server.lock:
                end()
                self.server.watching.discard(told)

    def log_message(self, *_: Any) -> None:
        pass
