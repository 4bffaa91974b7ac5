"""What a person reads when Kubeflow does not do as asked: one message, the exit code of its kind, and no secret."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.commands import SMALL, write
from tests.kubeflow import Done, KubeflowServer, command

CONFIG = f"{SMALL}kubernetes: {{image: 'registry.example/shardline:1'}}\n".replace("./data", "s3://bucket/folder")
SECRET = "s3cr3t-token"
Submit = Callable[..., Done]


@pytest.fixture
def server() -> Iterator[KubeflowServer]:
    with KubeflowServer() as started:
        yield started


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Submit:
    """`shardline submit` with each argument as a key of `kubeflow`."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path, CONFIG)

    def call(*keys: str) -> Done:
        options = [word for key in keys for word in ("--set", f"kubeflow.{key}")]
        return command("submit", "config.yaml", *options, patch=monkeypatch, capture=capsys)

    return call


def message(done: Done, code: int) -> str:
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr and SECRET not in done.stdout + done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and done.stdout == ""
    return line


def unused_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def web_token(seconds: float) -> str:
    claims = base64.urlsafe_b64encode(json.dumps({"exp": time.time() + seconds}).encode()).decode().rstrip("=")
    return f"e30.{claims}.{SECRET}"


def test_a_host_that_nobody_named(submit: Submit, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "kubeflow.host: is not set; " in message(submit(), 2)
    monkeypatch.setenv("KF_PIPELINES_ENDPOINT", "kubeflow.example.com")
    assert "KF_PIPELINES_ENDPOINT: is not a URL" in message(submit(), 2)


def test_a_host_that_does_not_answer(submit: Submit) -> None:
    line = message(submit(f"host=http://127.0.0.1:{unused_port()}"), 3)
    assert "cannot be reached: connection refused; check kubeflow.host" in line
    assert "cannot be reached" in message(submit("host=http://nobody.invalid"), 3)


@pytest.mark.parametrize(
    ("host", "rule"),
    [
        ("https://anne:" + SECRET + "@kubeflow.example.com", "must hold no user name or password"),
        ("kubeflow.example.com", "is not a URL such as"),
        ("http://kubeflow.example.com:port", "is not a URL such as"),
        ("https://kubeflow.example.com/pipeline/#/runs", "must end with the path"),
    ],
)
def test_a_host_that_is_none(host: str, rule: str, submit: Submit) -> None:
    done = submit(f"host='{host}'")
    assert done.returncode == 2 and rule in done.stderr


def test_who_asks_is_not_known(server: KubeflowServer, submit: Submit, monkeypatch: pytest.MonkeyPatch) -> None:
    server.token = SECRET
    host = f"host={server.url}"
    assert "set kubeflow.auth to a kind" in message(submit(host), 3)
    monkeypatch.setenv("MY_TOKEN", "another")
    token = ("auth.kind=token", "auth.variable=MY_TOKEN")
    assert "the token has expired or is not for this Kubeflow" in message(submit(host, *token), 3)
    monkeypatch.setenv("MY_TOKEN", SECRET)
    done = submit(host, *token)
    assert done.returncode == 0 and SECRET not in done.stdout + done.stderr
    (version,) = next(iter(server.versions.values())).values()
    assert SECRET not in str(version) + str(server.items)


@pytest.mark.parametrize("kind", ["token", "service-account"])
def test_a_token_in_a_file_is_read_anew_for_each_request(
    kind: str, server: KubeflowServer, submit: Submit, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text(f"{SECRET}\n")
    server.token = SECRET
    old = server.answer

    def answer(method: str, path: str, *rest: object) -> object:
        if path.endswith("/healthz"):  # Kubernetes renews it
            server.token = f"{SECRET}2"
            (tmp_path / "token").write_text(f"{SECRET}2\n")
        return old(method, path, *rest)  # type: ignore[arg-type]

    server.answer = answer  # type: ignore[method-assign]
    assert submit(f"host={server.url}", f"auth.kind={kind}", "auth.file=token").returncode == 0


@pytest.mark.parametrize(
    ("content", "code", "rule"),
    [
        (None, 3, "cannot be read: No such file or directory"),
        ("", 3, "is empty"),
        (f"{SECRET} and more", 2, "holds no token"),
        (f"{SECRET}\nX-Header: a", 2, "holds no token"),
        (web_token(-60), 3, "the token has expired, at 20"),
    ],
    ids=["none", "empty", "two words", "two lines", "expired"],
)
def test_a_token_that_cannot_be_used(
    content: str | None, code: int, rule: str, server: KubeflowServer, submit: Submit, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "token").write_text(content)
    assert rule in message(submit(f"host={server.url}", "auth.kind=token", "auth.file=token"), code)
    assert server.requests == []


def test_a_token_that_is_still_good_is_presented(
    server: KubeflowServer, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.token = web_token(3600)
    monkeypatch.setenv("MY_TOKEN", server.token)
    assert submit(f"host={server.url}", "auth.kind=token", "auth.variable=MY_TOKEN").returncode == 0


def test_a_variable_that_is_not_set(server: KubeflowServer, submit: Submit) -> None:
    line = message(submit(f"host={server.url}", "auth.kind=token", "auth.variable=MY_TOKEN"), 3)
    assert "the environment variable MY_TOKEN is not set" in line


def test_a_pod_without_its_projected_token(server: KubeflowServer, submit: Submit) -> None:
    line = message(submit(f"host={server.url}", "auth.kind=service-account"), 3)
    assert "/var/run/secrets/kubeflow/pipelines/token: cannot be read" in line and "audience" in line


def test_a_session_that_has_ended(server: KubeflowServer, submit: Submit, monkeypatch: pytest.MonkeyPatch) -> None:
    server.cookie = f"session={SECRET}"
    host, cookie = f"host={server.url}", ("auth.kind=cookie", "auth.variable=MY_COOKIE")
    assert "answers with a web page" in message(submit(host), 3)
    monkeypatch.setenv("MY_COOKIE", "session=old")
    assert "the session has ended: log in with a browser" in message(submit(host, *cookie), 3)
    monkeypatch.setenv("MY_COOKIE", SECRET)
    assert "NAME=VALUE" in message(submit(host, *cookie), 2)
    monkeypatch.setenv("MY_COOKIE", f"session={SECRET}")
    assert submit(host, *cookie).returncode == 0


@pytest.mark.parametrize(
    ("request_", "rule"),
    [
        (("GET", ".*/experiments"), "no right to list experiments: User 'anne' is not authorized"),
        (("POST", ".*/experiments"), "resources [experiments], verbs [create]"),
        (("POST", ".*/pipelines"), "resources [pipelines], verbs [create]"),
        (("POST", ".*/upload_version"), "resources [pipelines], verbs [create]"),
        (("POST", ".*/runs"), "no right to create run small"),
    ],
)
def test_a_right_that_is_missing_is_named(
    request_: tuple[str, str], rule: str, server: KubeflowServer, submit: Submit
) -> None:
    server.refusals[request_] = 403
    line = message(submit(f"host={server.url}"), 3)
    assert rule in line and "apiGroups [pipelines.kubeflow.org]" in line


def test_a_server_that_is_too_old_or_another_one(server: KubeflowServer, submit: Submit) -> None:
    server.refusals["GET", ".*/healthz"] = 404
    assert "has no API of version v2beta1; Kubeflow Pipelines 2 is needed" in message(submit(f"host={server.url}"), 3)
    server.refusals["GET", ".*/healthz"] = 302
    assert "answers with a web page" in message(submit(f"host={server.url}"), 3)


@pytest.mark.parametrize("experiment", [{"created_at": "yesterday"}, {}])
def test_a_server_whose_words_are_not_understood(
    experiment: dict[str, str], server: KubeflowServer, submit: Submit
) -> None:
    def answer(*request: object) -> object:
        found = {"display_name": "shardline", **experiment}
        return {"multi_user": False} if "healthz" in str(request) else {"experiments": [found]}

    server.answer = answer  # type: ignore[method-assign]
    assert "its answer is not understood" in message(submit(f"host={server.url}"), 3)


def test_a_server_that_fails_is_worth_another_try(server: KubeflowServer, submit: Submit) -> None:
    server.failures = [503]
    assert "(HTTP 503): upstream connect error; try again" in message(submit(f"host={server.url}"), 175)


def test_what_the_server_refuses_is_told_in_its_words(server: KubeflowServer, submit: Submit) -> None:
    server.refusals["POST", ".*/runs"] = 400
    assert "refused to create run small" in message(submit(f"host={server.url}"), 2)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of localhost that no system trusts, with its key, in one file."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - timedelta(hours=1))
        .not_valid_after(datetime.now(UTC) + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "certificate.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM) + private)
    return path


def test_a_certificate_that_is_not_trusted(certificate: Path, submit: Submit, server: KubeflowServer) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with KubeflowServer(tls=context) as secure:
        line = message(submit(f"host={secure.url}"), 3)
        assert "its certificate is not to be trusted: self-signed certificate; name the file" in line
        assert submit(f"host={secure.url}", f"ca_file={certificate}").returncode == 0
    plain = server.url.replace("http://", "https://")
    assert "does not speak TLS" in message(submit(f"host={plain}"), 3)


def test_a_certificate_file_that_is_none(server: KubeflowServer, submit: Submit) -> None:
    assert "holds no certificates (PEM)" in message(submit(f"host={server.url}", "ca_file=config.yaml"), 2)
    assert "nowhere.pem: cannot be read" in message(submit(f"host={server.url}", "ca_file=nowhere.pem"), 2)


@pytest.mark.parametrize(
    ("keys", "rule"),
    [
        (("auth.kind=token",), "needs kubeflow.auth.variable or kubeflow.auth.file"),
        (("auth.kind=token", "auth.file=a", "auth.variable=B"), "cannot be set beside kubeflow.auth.file"),
        (("auth.kind=service-account", "auth.variable=B"), "the token of a ServiceAccount is a file"),
        (("auth.file=a",), "must say what the file or variable holds"),
        (("auth.token=abc",), "unknown key"),
        (("namespace=Team",), "kubeflow.namespace"),
        (("pipeline=Übung",), "kubeflow.pipeline"),
        (("pipeline=My_Pipeline",), "kubeflow.pipeline"),
        (("pipeline=100%",), "kubeflow.pipeline"),
        ((f"pipeline={'a' * 130}",), "kubeflow.pipeline"),
    ],
)
def test_keys_that_cannot_be_are_refused(keys: tuple[str, ...], rule: str, submit: Submit) -> None:
    assert rule in message(submit(*keys), 2)
