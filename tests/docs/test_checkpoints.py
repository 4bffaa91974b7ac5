"""The commands that docs/checkpoints.md shows for forks and merges are run; numbers of steps are cut to a hundredth."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from shardline.components.common.storage import Storage
from shardline.components.training.checkpoint import catalog
from tests.commands import SMALL, shardline, write

PAGE = Path(__file__).parents[2] / "docs" / "checkpoints.md"
SHOWN = re.compile(r"^    (shardline (?:fork|merge|train) .*)$", re.MULTILINE)


def test_the_forks_and_merges_that_are_shown_work(tmp_path: Path) -> None:
    config = SMALL.replace("run: small", "run: base").replace("steps: 4,", "steps: 8, checkpoint: {every: 2},")
    write(tmp_path, config)
    commands = [shlex.split(re.sub(r"(\d+)00\b", r"\1", line)) for line in SHOWN.findall(PAGE.read_text())]
    assert {words[1] for words in commands} == {"fork", "train", "merge"}
    for words in [["", "shard", "config.yaml"], ["", "train", "config.yaml"], *commands]:
        done = shardline(*words[1:], cwd=tmp_path, SHARDLINE_ROOT="./data")
        assert done.returncode == 0, f"{shlex.join(words)}\n{done.stderr}"
    for name, steps in (("gentle", [8, 6, 4]), ("both", [8]), ("late", [8])):
        found = catalog.committed(Storage(str(tmp_path / "data" / "runs" / name)))
        assert [record.step for record in found] == steps
