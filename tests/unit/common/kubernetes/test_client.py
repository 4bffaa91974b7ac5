"""The client over HTTP: what it asks for, what it repeats, and what each refusal of an API server means to a user.

The answers are those of Kubernetes 1.34 and of the training operator's webhook, word for word; tests/cluster/ has the
real ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
import yaml

from shardline.components.common.errors import EnvironmentLacking, ShardlineError, UserError
from shardline.components.common.kubernetes.client import Client
from shardline.components.common.kubernetes.refusals import ClusterLost, Conflict, Forbidden, NotInstalled
from tests.serving import serving

CONFIG_MAP: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {}}
JOB = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "try"}, "spec": {}}


class Server(ThreadingHTTPServer):
    """An API server that gives the answers it is told to, one after the other, the last one over and over."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: list[tuple[int, Any]] = []
        self.requests: list[dict[str, Any]] = []
        #: Bytes that the next answer promises and does not bring.
        self.cut = 0


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def _answer(self) -> None:
        url = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.requests.append(
            {
                "method": self.command,
                "path": url.path,
                "query": dict(parse_qsl(url.query)),
                "type": self.headers["Content-Type"],
                "body": json.loads(body) if body else None,
                "token": self.headers["Authorization"],
            }
        )
        answers = self.server.answers
        code, answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if code == 0:
            return  # hangs up without an answer
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data) + self.server.cut))
        self.end_headers()
        self.wfile.write(data)
        self.server.cut = 0

    do_GET = do_POST = do_PATCH = do_DELETE = _answer

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(Server()) as server:
        yield server


@pytest.fixture
def client(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    kubeconfig(tmp_path, monkeypatch, f"http://127.0.0.1:{server.server_address[1]}")
    return Client.connect(patience=20)


def kubeconfig(folder: Path, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": address}}],
        "users": [{"name": "test", "user": {"token": "s3cret"}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": "team"}}],
    }
    (folder / "kubeconfig").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(folder / "kubeconfig"))


def status(code: int, reason: str, message: str, **details: Any) -> tuple[int, dict[str, Any]]:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": reason}
    return code, {**body, "details": details, "code": code}


def test_what_is_asked_for(server: Server, client: Client) -> None:
    server.answers = [(200, {"kind": "Status", "status": "Success"})]
    client.create(CONFIG_MAP)
    client.apply({**JOB, "metadata": {"name": "try", "namespace": "other"}}, dry_run=True)
    client.patch("PyTorchJob", "try", {"spec": None}, part="status")
    client.delete("Pod", "p", uid="1-2", grace=0)
    client.get("Namespace", "team")
    client.evict("p", uid="1-2")
    create, apply, patch, delete, get, evict = server.requests
    assert (create["method"], create["path"]) == ("POST", "/api/v1/namespaces/team/configmaps")
    assert (create["body"], create["token"]) == (CONFIG_MAP, "Bearer s3cret")
    assert apply["path"] == "/apis/kubeflow.org/v1/namespaces/other/pytorchjobs/try"
    assert apply["type"] == "application/apply-patch+yaml"
    assert apply["query"] == {
        "fieldManager": "shardline", "force": "true", "fieldValidation": "Strict", "dryRun": "All"
    }  # fmt: skip
    assert patch["path"].endswith("/pytorchjobs/try/status") and patch["type"] == "application/merge-patch+json"
    assert patch["body"] == {"spec": None}
    assert (delete["method"], delete["path"]) == ("DELETE", "/api/v1/namespaces/team/pods/p")
    assert delete["body"]["preconditions"] == {"uid": "1-2"} and delete["body"]["gracePeriodSeconds"] == 0
    assert get["path"] == "/api/v1/namespaces/team"
    assert (evict["method"], evict["path"]) == ("POST", "/api/v1/namespaces/team/pods/p/eviction")
    assert (evict["body"]["kind"], evict["body"]["metadata"]) == ("Eviction", {"name": "p"})
    assert evict["body"]["deleteOptions"] == {"preconditions": {"uid": "1-2"}}


def test_a_list_says_of_each_object_what_it_is(server: Server, client: Client) -> None:
    items = [{"metadata": {"name": "a"}}, {"metadata": {"name": "b"}}]
    server.answers = [(200, {"items": items, "metadata": {"resourceVersion": "7"}})]
    found = client.list("Pod", labels={"shardline.io/run": "try", "x": "y"})
    assert [(each["kind"], each["metadata"]["name"]) for each in found] == [("Pod", "a"), ("Pod", "b")]
    assert server.requests[0]["query"] == {"labelSelector": "shardline.io/run=try,x=y"}


def test_what_is_not_there_is_none(server: Server, client: Client) -> None:
    server.answers = [status(404, "NotFound", 'pods "p" not found', name="p", kind="pods")]
    assert client.get("Pod", "p") is None
    assert client.patch("Pod", "p", {"a": "b"}) is None
    assert client.delete("Pod", "p") is False


REFUSALS: dict[str, tuple[tuple[int, Any], type[ShardlineError], list[str]]] = {
    "rights": (
        status(
            403,
            "Forbidden",
            'pytorchjobs.kubeflow.org is forbidden: User "system:serviceaccount:team:default" cannot create resource '
            '"pytorchjobs" in API group "kubeflow.org" in the namespace "team"',
            group="kubeflow.org",
            kind="pytorchjobs",
        ),
        Forbidden,
        [
            "system:serviceaccount:team:default may not create pytorchjobs",
            '{apiGroups: ["kubeflow.org"], resources: [pytorchjobs], verbs: [create]}',
            "--only access",
        ],
    ),
    "no operator": (
        (404, b"404 page not found\n"),
        NotInstalled,
        ["does not know PyTorchJob (kubeflow.org/v1)", "install the Kubeflow training operator"],
    ),
    "no namespace": (
        status(404, "NotFound", 'namespaces "team" not found', name="team", kind="namespaces"),
        EnvironmentLacking,
        ["there is no namespace team", "kubectl create namespace team"],
    ),
    "quota": (
        status(
            403,
            "Forbidden",
            'pods "p" is forbidden: exceeded quota: team, requested: requests.cpu=4, used: requests.cpu=2, limited: '
            "requests.cpu=4",
        ),
        EnvironmentLacking,
        ["quota does not allow it: exceeded quota: team, requested: requests.cpu=4", "kubernetes.workers"],
    ),
    "quota that wants requests": (
        status(403, "Forbidden", 'pods "p" is forbidden: failed quota: team: must specify cpu,memory'),
        EnvironmentLacking,
        ["failed quota: team: must specify cpu,memory"],
    ),
    "pod security": (
        status(
            403,
            "Forbidden",
            'pods "p" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true (pod or container '
            '"pytorch" must set securityContext.runAsNonRoot=true)',
        ),
        UserError,
        ['Pod Security level does not allow it: PodSecurity "restricted:latest": runAsNonRoot', "kubernetes.patch"],
    ),
    "webhook": (
        status(
            403,
            "Forbidden",
            'admission webhook "validator.pytorchjob.training-operator.kubeflow.org" denied the request: '
            'spec.pytorchReplicaSpecs[Worker].template.spec.containers[0].name: Required value: must have "pytorch"',
        ),
        UserError,
        ["the webhook validator.pytorchjob.training-operator.kubeflow.org refuses it: spec.pytorchReplicaSpecs"],
    ),
    "fields": (
        status(
            422,
            "Invalid",
            'PyTorchJob.kubeflow.org "try" is invalid: spec.x: Invalid value: "y"',
            causes=[{"field": "spec.x", "message": 'Invalid value: "y"', "reason": "FieldValueInvalid"}],
        ),
        UserError,
        ['the cluster refuses it: spec.x: Invalid value: "y"'],
    ),
    "there already": (
        status(409, "AlreadyExists", 'pytorchjobs.kubeflow.org "try" already exists', name="try", kind="pytorchjobs"),
        Conflict,
        ['"try" already exists'],
    ),
    "expired": (
        status(401, "Unauthorized", "Unauthorized"),
        EnvironmentLacking,
        ["does not accept the credentials", "the token has expired"],
    ),
    "a policy engine": (
        status(403, "Forbidden", "denied by policy: images must come from the mirror"),
        EnvironmentLacking,
        ["the cluster refuses it: denied by policy"],
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_says_what_is_wrong_where_and_what_to_do(name: str, server: Server, client: Client) -> None:
    answer, kind, texts = REFUSALS[name]
    server.answers = [answer]
    with pytest.raises(ShardlineError) as caught:
        client.create(JOB)
    assert type(caught.value) is kind
    for text in texts:
        assert text in str(caught.value)
    assert "team" in str(caught.value)
    # It would come again: asked once.
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "failure",
    [
        (0, None),
        (503, b"apiserver is shutting down"),
        (429, {"message": "too many requests"}),
        status(500, "InternalError", 'Internal error occurred: failed calling webhook "v": context deadline exceeded'),
    ],
)
def test_what_fails_for_a_moment_is_asked_again(failure: tuple[int, Any], server: Server, client: Client) -> None:
    server.answers = [failure, failure, (200, CONFIG_MAP)]
    assert client.create(CONFIG_MAP) == CONFIG_MAP
    assert len(server.requests) == 3


def test_an_answer_that_is_cut_off_is_asked_for_again(server: Server, client: Client) -> None:
    server.answers, server.cut = [(200, CONFIG_MAP)], 5
    assert client.get("ConfigMap", "c") == CONFIG_MAP
    assert len(server.requests) == 2


def test_what_is_no_api_server_is_said_to_be_none(server: Server, client: Client) -> None:
    server.answers = [(200, b"<html>log in</html>")]
    with pytest.raises(EnvironmentLacking, match="what answers is no API server: b'<html>log in"):
        client.get("ConfigMap", "c")


def test_a_cluster_that_is_gone_is_lost_when_patience_ends(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubeconfig(tmp_path, monkeypatch, f"http://127.0.0.1:{server.server_address[1]}")
    client = Client.connect(patience=0.3)
    server.answers = [(200, CONFIG_MAP)]
    client.get("ConfigMap", "c")
    server.answers = [(503, b"")]
    with pytest.raises(ClusterLost, match=r"the API server failed \(503\)"):
        client.get("ConfigMap", "c")
    assert len(server.requests) > 2


def test_an_address_where_nothing_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kubeconfig(tmp_path, monkeypatch, "http://127.0.0.1:9")
    with pytest.raises(EnvironmentLacking, match=r"no cluster answers at http://127\.0\.0\.1:9: .*check KUBECONFIG"):
        Client.connect(patience=0.3).get("Pod", "p")


@pytest.mark.parametrize("content", [None, "{}", "a: [", "- a\n"])
def test_no_cluster_to_talk_to(content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kubeconfig"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("KUBECONFIG", str(path))
    with pytest.raises(EnvironmentLacking, match=r"no cluster to talk to: .*set KUBECONFIG"):
        Client.connect()


def pod(name: str, version: int) -> dict[str, Any]:
    return {"kind": "Pod", "metadata": {"name": name, "uid": name, "resourceVersion": str(version)}}


def stream(*events: tuple[str, dict[str, Any]]) -> tuple[int, bytes]:
    return 200, b"".join(json.dumps({"type": kind, "object": each}).encode() + b"\n" for kind, each in events)


def listing(version: int, *items: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    return 200, {"items": list(items), "metadata": {"resourceVersion": str(version)}}


def test_a_watch_goes_on_over_lost_connections_and_lost_history(server: Server, client: Client) -> None:
    gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
    server.answers = [
        listing(1, pod("a", 1), pod("b", 1)),
        stream(("MODIFIED", pod("a", 2)), ("ADDED", pod("c", 3))),  # the connection ends
        listing(3, pod("a", 2), pod("b", 1), pod("c", 3)),
        stream(("ERROR", gone)),
        listing(9, pod("a", 2), pod("c", 8)),  # b is gone meanwhile, c has changed
        (200, b'{"type": "MODIFIED", "obj'),  # cut off
        listing(10, pod("a", 10), pod("c", 8)),
        stream(("DELETED", pod("a", 11))),
        listing(11, pod("c", 8)),
        stream(),
    ]
    seen = []
    for kind, each in client.watch("Pod", seconds=20, name="x"):
        seen.append((kind, each["metadata"]["name"], int(each["metadata"]["resourceVersion"])))
        if seen[-1] == ("DELETED", "a", 11):
            break
    assert seen == [
        ("ADDED", "a", 1),
        ("ADDED", "b", 1),
        ("MODIFIED", "a", 2),
        ("ADDED", "c", 3),
        ("DELETED", "b", 1),
        ("MODIFIED", "c", 8),
        ("MODIFIED", "a", 10),
        ("DELETED", "a", 11),
    ]
    watching = server.requests[1]["query"]
    assert watching["resourceVersion"] == "1" and watching["fieldSelector"] == "metadata.name=x"


def test_a_watch_ends_in_time(server: Server, client: Client) -> None:
    server.answers = [listing(1, pod("a", 1))]  # the answer to the watch is no stream either: like a cut connection
    assert [kind for kind, _ in client.watch("Pod", seconds=0.2)] == ["ADDED"]


def test_a_watch_without_rights_is_refused(server: Server, client: Client) -> None:
    message = 'pods is forbidden: User "me" cannot watch resource "pods" in API group "" in the namespace "team"'
    server.answers = [listing(1), status(403, "Forbidden", message)]
    with pytest.raises(Forbidden, match=r"me may not watch pods; add to a Role .*\[\"\"\].*verbs: \[watch\]"):
        list(client.watch("Pod", seconds=5))
