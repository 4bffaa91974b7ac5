"""The set-up says in one line what a machine lacks, and hands pip's settings on to uv."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def set_up() -> ModuleType:
    spec = importlib.util.spec_from_file_location("set_up", ROOT / ".ci" / "set_up.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder that has what `make` needs to set up, on a path with a space in it."""
    clone = tmp_path / "a clone"
    (clone / ".ci").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "constraints.txt", ".ci/set_up.py"):
        shutil.copy(ROOT / name, clone / name)
    return clone


def make(clone: Path, python: str) -> tuple[int, list[str]]:
    command = ["make", "--no-print-directory", "run", f"PYTHON={python}"]
    # Run from `make test`, this make would take itself for a part of that one and say so.
    environment = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    }
    done = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True)
    return done.returncode, [line for line in done.stderr.splitlines() if not line.startswith("make: ")]


def test_python_without_venv_is_named_with_the_package_to_install(clone: Path, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("import sys\nsys.modules['ensurepip'] = None\n")
    python = tmp_path / "python-without-venv"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{hidden}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    code, lines = make(clone, str(python))
    assert code != 0
    assert len(lines) == 1 and "has no venv or no pip" in lines[0]
    assert "{}.{}".format(*sys.version_info) in lines[0]
    assert not (clone / ".venv").exists()


def test_missing_python_is_named_with_the_package_to_install(clone: Path) -> None:
    code, lines = make(clone, "python-that-is-not-there")
    assert code != 0
    assert lines == ["shardline: there is no python-that-is-not-there: sudo apt-get install python3-venv"]


def test_old_python_without_a_newer_one_beside_it(set_up: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(set_up, "OLDEST", (99, 0))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(set_up.Lacking, match=r"needs Python 99\.0 or newer .*99\.0"):
        set_up.find_python()


def test_environment_variable_of_pip_wins_over_its_files(set_up: ModuleType) -> None:
    config = "global.index-url='https://one/simple'\n:env:.index-url='https://two/simple'\ninstall.cert='/ca.pem'\n"
    assert set_up.uv_settings(config, {}) == {"UV_DEFAULT_INDEX": "https://two/simple", "SSL_CERT_FILE": "/ca.pem"}


def test_setting_of_uv_wins_over_those_of_pip(set_up: ModuleType) -> None:
    config = "global.index-url='https://one/simple'\nglobal.extra-index-url='\\nhttps://a\\nhttps://b'\n"
    settings = set_up.uv_settings(config, {"UV_DEFAULT_INDEX": "https://mine", "REQUESTS_CA_BUNDLE": "/ca.pem"})
    assert settings == {"UV_INDEX": "https://a https://b", "SSL_CERT_FILE": "/ca.pem"}


def test_pip_prints_its_settings_as_they_are_read(set_up: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = https://one/simple\ntrusted-host =\n    one\n    two\n")
    env = {"PIP_CONFIG_FILE": str(tmp_path / "pip.conf"), "PATH": os.environ["PATH"]}
    config = subprocess.check_output([sys.executable, "-m", "pip", "config", "list"], text=True, env=env)
    assert set_up.uv_settings(config, {})["UV_DEFAULT_INDEX"] == "https://one/simple"
    assert set_up.uv_settings(config, {})["UV_INSECURE_HOST"] == "one two"


def test_files_are_copied_where_hard_links_are_not_possible(
    set_up: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(set_up, "VENV", str(tmp_path))
    assert set_up.link_mode(str(tmp_path / "cache")) == "hardlink"
    (tmp_path / "file").touch()
    assert set_up.link_mode(str(tmp_path / "file" / "cache")) == "copy"
