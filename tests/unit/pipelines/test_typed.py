"""Hints that can be typed as they are printed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from shardline.pipelines.cli.typed import command_line, program


def test_the_options_that_were_given_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [".venv/bin/shardline"])
    overrides = ["training.steps=5", "training.layout={pp: 2}"]
    line = command_line("run", "my run.yaml", overrides=overrides, root="s3://b/x", leave_out="training.steps")
    assert line == ".venv/bin/shardline run 'my run.yaml' --set 'training.layout={pp: 2}' --root s3://b/x"
    assert command_line("run", "c.yaml", overrides=None, root=None) == ".venv/bin/shardline run c.yaml"


def test_a_command_in_the_path_is_called_by_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "shardline"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program() == "shardline"
    monkeypatch.setenv("PATH", "/nowhere")
    assert program() == str(script)


def test_a_module_is_called_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/pipelines/cli/main.py"])
    monkeypatch.setattr(sys, "orig_argv", ["python3", "-m", "shardline.pipelines.cli.main"])
    assert program() == "python3 -m shardline.pipelines.cli.main"
