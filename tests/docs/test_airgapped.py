"""What docs/kubernetes.md says of clusters without internet, and that a run fetches nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from shardline.components.common.config import parse
from tests.commands import COMMAND, SMALL, environment, write
from tests.contract.servers import lacking
from tests.docs.pages import snippets

PAGE = Path(__file__).parents[2] / "docs" / "kubernetes.md"
#: A network that has this machine alone, from which no other is reached; as root, or where users may have one.
ALONE = ["unshare", "--user", "--map-root-user", "--net"]
#: Brings up its loopback, sees that nothing else is reached, and becomes the command.
START = """
import errno, fcntl, os, socket, struct, sys
with socket.socket() as any:
    fcntl.ioctl(any, 0x8914, struct.pack("16sH14x", b"lo", 1))
    assert any.connect_ex(("192.0.2.1", 80)) == errno.ENETUNREACH
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_the_commands_show_every_image_of_a_run(tmp_path: Path) -> None:
    (config,) = snippets(PAGE, "yaml")
    assert parse(config, source="docs/kubernetes.md").config.tokenizer.url == "s3://my-bucket/tokenizer.json"
    (tmp_path / "wiki.yaml").write_text(config.replace("s3://my-bucket", str(tmp_path)))
    python = tmp_path / ".venv" / "bin" / "shardline"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m shardline.pipelines.cli.main "$@"\n')
    python.chmod(0o755)
    (commands,) = snippets(PAGE, "sh")
    both = ["shardline-light:0.1.0", "shardline-training:0.1.0"]
    shown = subprocess.run(
        ["sh", "-ec", commands], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=240
    )
    assert shown.returncode == 0, shown.stderr
    assert re.findall(r"registry\.internal/(\S+?)[\"']?$", shown.stdout, re.MULTILINE) == both * 2
    assert len(shown.stdout.splitlines()) == 4


@pytest.mark.timeout(600)
def test_a_run_fetches_nothing(tmp_path: Path) -> None:
    if subprocess.run([*ALONE, "true"], capture_output=True).returncode:
        lacking("a network namespace: unshare, and leave to use it")
    write(tmp_path, SMALL)
    run = [*ALONE, sys.executable, "-c", START, *COMMAND, "run", "config.yaml"]
    done = subprocess.run(run, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "data" / "runs" / "small" / "done.json").exists()
