"""The server beside training: its three answers, and that nothing that goes wrong with it reaches training."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from shardline.components.common.config import parse
from shardline.components.common.vitals import VARIABLE
from shardline.components.monitoring.exposition import Standing
from shardline.components.monitoring.server import serving, serving_local
from tests.commands import SMALL
from tests.contract.servers import free_port

WELL = Standing(role="member", generation=3, world=2, least=2, silent=1.0)


def ask(port: int | None, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.fixture
def port() -> int:
    return free_port()


def test_metrics_are_what_prometheus_reads(port: int) -> None:
    with serving("try", port=port, standing=lambda: WELL) as found:
        assert found == port
        with urllib.request.urlopen(f"http://localhost:{port}/metrics?x=1", timeout=20) as answer:
            assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            assert 'shardline_world_size{run="try"} 2.0\n' in answer.read().decode()


def test_nothing_else_is_there(port: int) -> None:
    with serving("try", port=port, standing=lambda: WELL):
        for path in ("/", "/metrics/", "/../etc/passwd", "/_health"):
            assert ask(port, path)[0] == 404


@pytest.mark.parametrize(
    ("standing", "health", "readiness"),
    [
        (Standing(generation=0, world=0, silent=59.0), 200, 200),
        (Standing(generation=0, world=0, silent=61.0), 503, 200),
        (Standing(generation=0, world=0, ready=False), 200, 503),
    ],
)
def test_health_is_the_agents_and_readiness_that_of_its_place(
    port: int, standing: Standing, health: int, readiness: int
) -> None:
    with serving("try", port=port, standing=lambda: standing, patience=60.0):
        assert ask(port, "/healthz")[0] == health
        assert ask(port, "/readyz")[0] == readiness


def test_a_port_that_is_in_use_means_another_one(port: int, capfd: pytest.CaptureFixture[str]) -> None:
    with serving("a", port=port, standing=lambda: WELL), serving("b", port=port, standing=lambda: WELL) as other:
        assert other and other != port
        assert 'run="b"' in ask(other, "/metrics")[1] and 'run="a"' in ask(port, "/metrics")[1]
    line = f"note: metrics are served at port {other}: {port} (monitoring.port) is in use\n"
    assert capfd.readouterr() == ("", line)


def test_a_port_that_cannot_be_had_means_none(
    port: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refused)
    with serving("try", port=port, standing=lambda: WELL) as found:
        assert found is None
    assert capfd.readouterr().err == f"note: metrics are not served: port {port}: Permission denied\n"


def test_no_room_for_temporary_files_costs_the_workers_numbers(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch, contextlib.ExitStack() as stack:
        patch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
        stack.enter_context(serving("try", port=port, standing=lambda: WELL))
        assert VARIABLE not in os.environ
        assert "shardline_world_size" in ask(port, "/metrics")[1]
    assert capfd.readouterr().err.startswith("note: the workers' metrics are not served: no folder for temporary files")


def test_a_standing_that_fails_is_an_answer(port: int, capfd: pytest.CaptureFixture[str]) -> None:
    def broken() -> Standing:
        raise ValueError("what is this")

    with serving("try", port=port, standing=broken):
        assert ask(port, "/metrics") == (500, "ValueError: what is this\n")
    assert capfd.readouterr() == ("", "")


def test_a_client_that_says_nothing_or_goes_holds_up_nobody(port: int, capfd: pytest.CaptureFixture[str]) -> None:
    with (
        serving("try", port=port, standing=lambda: WELL),
        socket.create_connection(("127.0.0.1", port)),
        socket.create_connection(("127.0.0.1", port)) as gone,
    ):
        gone.sendall(b"GET /metrics HTTP/1.1\r\n")
        gone.close()
        assert ask(port, "/healthz")[0] == 200
    assert capfd.readouterr() == ("", "")


def test_the_port_is_free_afterwards(port: int) -> None:
    for _ in range(2):
        with serving("try", port=port, standing=lambda: WELL) as found:
            assert found == port and VARIABLE in os.environ
        assert VARIABLE not in os.environ


def test_a_run_on_this_machine_serves_when_it_is_asked_to(port: int) -> None:
    config = parse(SMALL, source="x", overrides=[f"monitoring.port={port}"], ignore_environment=True).config
    with serving_local(config) as found:
        assert found == port
        assert ask(port, "/healthz") == ask(port, "/readyz") == (200, "ok\n")


@pytest.mark.parametrize("value", ["auto", "0"])
def test_and_not_otherwise(value: str) -> None:
    config = parse(SMALL, source="x", overrides=[f"monitoring.port={value}"], ignore_environment=True).config
    with serving_local(config) as found:
        assert found is None and VARIABLE not in os.environ
