"""A Kubeflow Pipelines API server for tests, and the commands that talk to it.

Real HTTP, everything in memory, each request checked.

A body is read with the models of kfp-server-api and must have no key that they do not know; then comes what the real
server was seen to refuse (namespaces in single-user mode, unknown parameters, a cron of five fields, a name that is
taken). It answers in pages of two.
"""

from __future__ import annotations

import json
import re
import signal
import ssl
import threading
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from email.parser import BytesParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import kfp_server_api
import pytest
import yaml

from shardline.pipelines.cli.main import main

_PAGE = 2
_LISTS = {"experiments": "experiments", "pipelines": "pipelines", "runs": "runs", "recurringruns": "recurringRuns"}
_IDS = {
    "experiments": "experiment_id",
    "pipelines": "pipeline_id",
    "runs": "run_id",
    "recurringruns": "recurring_run_id",
}


class Done(NamedTuple):
    """What a command left, as subprocess.CompletedProcess has it."""

    returncode: int
    stdout: str
    stderr: str


def command(*arguments: str, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> Done:
    """Call the command line in this process, which has kfp loaded already: that takes seconds."""
    patch.setattr("sys.argv", ["shardline", *arguments])
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    capture.readouterr()
    try:
        main()
        code: int | str | None = 0
    except SystemExit as ended:
        code = ended.code
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    output = capture.readouterr()
    return Done(int(code or 0), output.out, output.err)


class Refused(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class KubeflowServer:
    """The server, for the length of a `with` block. What it holds may be looked at and changed by the test."""

    def __init__(self, *, tls: ssl.SSLContext | None = None) -> None:
        self.multi_user = False
        self.token: str | None = None
        self.cookie: str | None = None
        self.login_page = False
        #: (method, path) -> status of what is refused, with a pattern for the path.
        self.refusals: dict[tuple[str, str], int] = {}
        #: Statuses of the answers to come, whatever is asked.
        self.failures: list[int] = []
        self.items: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in _LISTS}
        self.versions: dict[str, dict[str, dict[str, Any]]] = {}
        self.requests: list[str] = []
        #: Called with a run before it is shown: what happens to it meanwhile.
        self.on_look: Callable[[dict[str, Any]], None] = lambda run: None
        handler = type("Handler", (_Handler,), {"kubeflow": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        if tls:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.url = f"http{'s' if tls else ''}://localhost:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    def __enter__(self) -> KubeflowServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def all(self, kind: str) -> list[dict[str, Any]]:
        return list(self.items[kind].values())

    # What each request does.

    def answer(self, method: str, path: str, query: dict[str, str], body: bytes, content_type: str) -> Any:
        match = re.fullmatch(r"/apis/v2beta1/(\w+)(?:/([-\w]+))?(?:/(versions))?(?::(\w+))?", path)
        if match is None:
            raise Refused(404, "Not Found")
        kind, item, versions, verb = match.groups()
        if (method, kind) == ("GET", "healthz"):
            return {"multi_user": self.multi_user}
        if kind not in _LISTS:
            raise Refused(404, "Not Found")
        if method == "POST" and item == "upload_version":
            return self._upload(query, body, content_type)
        if method == "GET" and versions:
            return self._page(list(self.versions.get(str(item), {}).values()), "pipeline_versions", query)
        if item is None:
            return self._list(kind, query) if method == "GET" else self._create(kind, body)
        found = self.items[kind].get(item)
        if found is None:
            raise Refused(404, f"{kind} {item} not found: sql: no rows in result set")
        return self._change(method, kind, found, verb)

    def _list(self, kind: str, query: dict[str, str]) -> Any:
        self._check_namespace(query.get("namespace"), needed=kind == "experiments")
        found = [each for each in self.all(kind) if query.get("experiment_id") in (None, each.get("experiment_id"))]
        if query.get("sort_by") == "created_at desc":
            found.reverse()
        return self._page(found, _LISTS[kind], query)

    def _page(self, found: list[dict[str, Any]], name: str, query: dict[str, str]) -> Any:
        for predicate in json.loads(query.get("filter") or "{}").get("predicates", []):
            assert predicate["operation"] == "EQUALS", predicate
            found = [each for each in found if each[predicate["key"]] == predicate["stringValue"]]
        start = int(query.get("page_token") or 0)
        more = {"next_page_token": str(start + _PAGE)} if start + _PAGE < len(found) else {}
        return {name: found[start : start + _PAGE], "total_size": len(found), **more}

    def _create(self, kind: str, body: bytes) -> Any:
        models = {
            "experiments": "V2beta1Experiment",
            "pipelines": "V2beta1Pipeline",
            "runs": "V2beta1Run",
            "recurringruns": "V2beta1RecurringRun",
        }
        made = checked(json.loads(body), models[kind])
        if not made.get("display_name"):
            raise Refused(400, "display_name is required")
        if kind in ("experiments", "pipelines"):
            self._check_namespace(made.get("namespace"), needed=kind == "experiments")
            if any(each["display_name"] == made["display_name"] for each in self.all(kind)):
                raise Refused(409, f"The name {made['display_name']} already exist. Please specify a new name.")
        else:
            self._check_start(made)
        if kind == "recurringruns":
            self._check_schedule(made)
        made |= {_IDS[kind]: str(uuid.uuid4()), "created_at": now()}
        if kind == "runs":
            made |= {"state": "PENDING", "state_history": [], "scheduled_at": made["created_at"]}
        self.items[kind][made[_IDS[kind]]] = made
        return made

    def _change(self, method: str, kind: str, found: dict[str, Any], verb: str | None) -> Any:
        if (method, verb) == ("GET", None):
            if kind == "runs":
                self.on_look(found)
            return found
        if (method, verb, kind) == ("DELETE", None, "recurringruns"):
            del self.items[kind][found["recurring_run_id"]]
        elif (method, verb, kind) == ("POST", "terminate", "runs"):
            set_state(found, "CANCELING")
        elif (method, kind) == ("POST", "recurringruns") and verb in ("enable", "disable"):
            found["mode"] = str(verb).upper()
        else:
            raise Refused(501, "Method Not Allowed")
        return {}

    def _upload(self, query: dict[str, str], body: bytes, content_type: str) -> Any:
        pipeline, name = query["pipelineid"], query["name"]
        if pipeline not in self.items["pipelines"]:
            raise Refused(404, f"Pipeline {pipeline} not found")
        versions = self.versions.setdefault(pipeline, {})
        if any(each["name"] == name for each in versions.values()):
            raise Refused(409, f"The name {name} already exist. Please specify a new name.")
        message = BytesParser().parsebytes(b"Content-Type: " + content_type.encode() + b"\r\n\r\n" + body)
        (part,) = message.get_payload()
        assert part.get_filename() == "pipeline.yaml"
        spec = list(yaml.safe_load_all(part.get_payload(decode=True)))
        made = {
            "pipeline_id": pipeline,
            "pipeline_version_id": str(uuid.uuid4()),
            "name": name,
            "display_name": query.get("display_name", name),
            "created_at": now(),
            "pipeline_spec": {"pipeline_spec": spec[0], "platform_spec": spec[1]},
        }
        versions[made["pipeline_version_id"]] = made
        return made

    # What it refuses.

    def _check_namespace(self, namespace: str | None, *, needed: bool) -> None:
        if namespace and not self.multi_user:
            raise Refused(400, "In single-user mode, a namespace must not be specified.")
        if self.multi_user and needed and not namespace:
            raise Refused(400, "Invalid resource references for experiment. Namespace is empty.")

    def _check_start(self, made: dict[str, Any]) -> None:
        if made.get("experiment_id") not in self.items["experiments"]:
            raise Refused(404, "experiment not found")
        reference = made["pipeline_version_reference"]
        version = self.versions.get(reference["pipeline_id"], {}).get(reference["pipeline_version_id"])
        if version is None:
            raise Refused(404, "pipeline version not found")
        defined = version["pipeline_spec"]["pipeline_spec"]["root"]["inputDefinitions"]["parameters"]
        kinds = {"STRING": str, "BOOLEAN": bool}
        for name, value in made["runtime_config"]["parameters"].items():
            if name not in defined or not isinstance(value, kinds[defined[name]["parameterType"]]):
                raise Refused(400, f"invalid runtime parameter {name}")

    def _check_schedule(self, made: dict[str, Any]) -> None:
        cron = made["trigger"]["cron_schedule"]["cron"]
        if len(cron.split(" ")) != 6:
            raise Refused(400, f"Schedule {cron} is not one of seconds first")
        if not 1 <= int(made["max_concurrency"]) <= 10:
            raise Refused(400, "max_concurrency is out of range")


def checked(body: Any, model: str) -> dict[str, Any]:
    """`body` as the model has it; raises Refused for a key or a value that it does not know."""

    class Response:
        data = json.dumps(body)

    client = kfp_server_api.ApiClient()
    try:
        read = client.sanitize_for_serialization(client.deserialize(Response, model))
    except ValueError as error:
        raise Refused(400, str(error)) from error
    if json.loads(json.dumps(read)) != body:
        raise Refused(400, f"unknown field in {body}, of which {read} is known")
    return dict(body)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def set_state(run: dict[str, Any], state: str) -> None:
    run["state"] = state
    run["state_history"].append({"state": state, "update_time": now()})


def set_tasks(run: dict[str, Any], **states: str) -> None:
    tasks = [
        {"display_name": name, "state": state, "task_id": name, "child_tasks": [{"pod_name": f"small-{name}-1"}]}
        for name, state in states.items()
    ]
    # Some nodes of the workflow have no name.
    run["run_details"] = {"task_details": [{"task_id": "root", "state": "RUNNING"}, *tasks]}


class _Handler(BaseHTTPRequestHandler):
    kubeflow: KubeflowServer

    def _handle(self) -> None:
        url, server = urlsplit(self.path), self.kubeflow
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        server.requests.append(f"{self.command} {url.path}")
        try:
            self._check(url.path)
            query = dict(parse_qsl(url.query))
            answer = server.answer(self.command, url.path, query, body, self.headers.get("Content-Type", ""))
        except Refused as refused:
            self._send(refused.status, json.dumps({"error": str(refused), "code": 3, "message": str(refused)}))
        else:
            self._send(200, json.dumps(answer))

    def _check(self, path: str) -> None:
        server = self.kubeflow
        if server.failures:
            raise Refused(server.failures.pop(0), "upstream connect error")
        if server.token is not None and self.headers.get("Authorization") != f"Bearer {server.token}":
            raise Refused(401, "Request header error: there is no user identity header.")
        for (method, pattern), status in server.refusals.items():
            if method == self.command and re.fullmatch(pattern, path):
                raise Refused(status, "User 'anne' is not authorized with reason: (request: &ResourceAttributes{})")

    def _send(self, status: int, text: str) -> None:
        server = self.kubeflow
        if server.login_page or (server.cookie is not None and self.headers.get("Cookie") != server.cookie):
            status, text, kind = 200, "<html><title>Log in to Your Account</title></html>", "text/html"
        else:
            kind = "application/json"
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    do_GET = do_POST = do_DELETE = _handle

    def log_message(self, format: str, *arguments: Any) -> None:
        pass
