"""What `make test-cluster` says where it has no cluster: one line, with what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster import scripts

ROOT = Path(__file__).parents[2]


def tool(folder: Path, name: str, prints: str = "") -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\nprintf '{prints}'\n")
    (folder / name).chmod(0o755)


def said(**variables: str) -> str:
    kept = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/cluster"]
    done = subprocess.run(command, cwd=ROOT, env={**kept, **variables}, capture_output=True, text=True, check=False)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR and not done.stdout
    return done.stderr.strip()


def test_a_machine_that_cannot_hold_a_cluster_says_what_it_lacks(tmp_path: Path) -> None:
    assert said(PATH=str(tmp_path)) == (
        "ERROR: set KUBECONFIG to a cluster that has the training operator (kind, minikube, ...); "
        "to start one here, this machine lacks Debian Linux"
    )


def test_a_kubeconfig_without_a_cluster_is_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    assert said(KUBECONFIG=missing).startswith(f"ERROR: no cluster at KUBECONFIG={missing}: ")


@pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="the box needs Linux and root before it needs Go"
)
@pytest.mark.parametrize(
    ("printed", "lacks"),
    [
        (None, "Go 1.26 or newer"),
        ("go1.19.8\n\n", "Go 1.26 or newer (1.19 is here; 1.21 will do if it may fetch: GOTOOLCHAIN=auto)"),
        ("go1.22.1\nlocal\n", "Go 1.26 or newer (1.22 is here; 1.21 will do if it may fetch: GOTOOLCHAIN=auto)"),
        ("go1.22.1\nauto\n", None),
        ("go1.26.8\nlocal\n", None),
        ("go2.0\nlocal\n", None),
    ],
)
def test_go_has_to_be_new_enough_or_able_to_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str | None, lacks: str | None
) -> None:
    tool(tmp_path, "apt-get")
    if printed is not None:
        tool(tmp_path, "go", printed)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert scripts.lacking() == lacks
