"""The README's snippets are run as they stand; only the numbers of optimizer steps are cut to a hundredth."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import environment
from tests.distributed.runs import write_corpus
from tests.docs.pages import snippets

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "images/README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]


def test_the_make_targets_exist() -> None:
    targets = [
        line.split()[1]
        for text in snippets(ROOT / "README.md", "sh")
        for line in text.splitlines()
        if line.startswith("make ")
    ]
    assert {"run", "test"} <= set(targets)
    for target in targets:
        subprocess.run(["make", "--dry-run", target], cwd=ROOT, check=True, capture_output=True)


@pytest.mark.timeout(900)
def test_the_commands_work_in_the_order_they_are_shown(tmp_path: Path) -> None:
    write_corpus(tmp_path / "texts", documents=600)
    (config,) = snippets(ROOT / "README.md", "yaml")
    (tmp_path / "my-run.yaml").write_text(re.sub(r"steps: (\d+)00$", r"steps: \1", config, flags=re.MULTILINE))
    commands = [
        line
        for text in snippets(ROOT / "README.md", "sh")
        for line in text.splitlines()
        if not line.startswith("make ")
    ]
    assert len(commands) >= 7
    for command in commands:
        words = shlex.split(re.sub(r"steps=(\d+)00\b", r"steps=\1", command))
        assert words[0] == ".venv/bin/shardline"
        shown = subprocess.run(
            [sys.executable, "-m", "shardline.pipelines.cli.main", *words[1:]],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
        )
        assert shown.returncode == 0, f"{command}\n{shown.stderr}"
    run = tmp_path / "shardline-data" / "runs" / "my-run"
    for name in ("config.yaml", "report.html", "model/model.safetensors", "checkpoints/step-000000000008/commit.json"):
        assert (run / name).exists(), name
    assert (tmp_path / "pipeline.yaml").exists()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
