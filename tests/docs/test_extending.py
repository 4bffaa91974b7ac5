"""The command that docs/extending.md shows is run, with fewer steps and less text; its config is the example's."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import yaml

from shardline.components.common.storage import Storage
from shardline.components.common.streams import read_all
from tests.commands import shardline

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
LESS = "corpus=stdlib:asyncio tokenizer.vocab=512 sharding.unit=256KiB sharding.held_out=0.1 training.steps=3"


def test_the_examples_train_and_are_measured(tmp_path: Path) -> None:
    # Where the command looks for them, and nowhere else that Python would.
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (line,) = re.findall(r"^PYTHONPATH=.*$", PAGE, re.MULTILINE)
    variable, program, *words = shlex.split(line)
    assert program == ".venv/bin/shardline"
    options = [word for each in [*LESS.split(), "training.sequence=64"] for word in ("--set", each)]
    done = shardline(*words, *options, cwd=tmp_path, PYTHONPATH=variable.removeprefix("PYTHONPATH="))
    assert done.returncode == 0, done.stderr
    run = Storage(str(tmp_path / "shardline-data" / "runs" / "extend"))
    names = {event["name"] for event in read_all(run.at("events"))}
    assert {"evaluation.finished", "model.not_exported"} <= names and "model.exported" not in names


def test_the_page_names_what_the_example_has() -> None:
    (shown,) = [yaml.safe_load(text) for text in re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)]
    example = yaml.safe_load((ROOT / "examples" / "extend" / "run.yaml").read_text(encoding="utf-8"))
    assert shown["model"]["class"] == example["model"]["class"]
    assert shown["training"]["optimizer"]["name"] == example["training"]["optimizer"]["name"]
