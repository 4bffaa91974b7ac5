"""The commands and configs of docs/kubeflow.md, as they stand there, against an API server that checks each request."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import yaml

from shardline.components.common.config import parse
from tests.commands import SMALL
from tests.docs.pages import snippets
from tests.kubeflow import KubeflowServer, command, set_state

PAGE = Path(__file__).parents[2] / "docs" / "kubeflow.md"


def test_the_commands_work_in_the_order_they_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with KubeflowServer() as server:
        # A bucket that is there, so that the end of a run can be looked for in it.
        config = snippets(PAGE, "yaml")[0].replace("http://localhost:8080", server.url)
        Path("wiki.yaml").write_text(config.replace("s3://my-bucket", str(tmp_path)))
        server.on_look = lambda run: None if run["state"] == "SUCCEEDED" else set_state(run, "SUCCEEDED")
        lines = [line for text in snippets(PAGE, "sh") for line in text.splitlines()]
        assert len(lines) >= 12
        for line in lines:
            words = shlex.split(line)
            assert words[0] == ".venv/bin/shardline"
            runs = [run["run_id"] for run in server.all("runs")]
            arguments = [runs[0] if word == "RUN-ID" else word for word in words[1:]]
            done = command(*arguments, patch=monkeypatch, capture=capsys)
            assert done.returncode == 0, f"{line}\n{done.stderr}"
        assert Path("pipeline.yaml").exists()
        assert len(server.all("runs")) == 3 and server.all("recurringruns") == []


@pytest.mark.parametrize("text", snippets(PAGE, "yaml"))
def test_the_configs_are_valid(text: str) -> None:
    tree = yaml.safe_load(text)
    if "projected" in tree:
        (source,) = tree["projected"]["sources"]
        assert source["serviceAccountToken"]["audience"] == "pipelines.kubeflow.org"
        return
    whole = tree if "version" in tree else {**yaml.safe_load(SMALL), **tree}
    assert parse(yaml.safe_dump(whole), source="docs/kubeflow.md").config.kubeflow.host == tree["kubeflow"]["host"]
