"""Where there is no torch, as in the light container image: what works all the same, and how the rest is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import environment, write

REFUSED = "error: this needs torch, which is not installed; `pip install shardline` brings it; "

#: Run at the start of each Python: it finds no torch.
HIDE = """
from importlib.machinery import PathFinder

find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *where: None if name == "torch" else find(name, *where)
"""

#: Commands and their arguments in the order in which a run needs them; none computes with a model.
LIGHT = (
    "config check config.yaml",
    "plan config.yaml",
    "shard config.yaml",
    "data info config.yaml",
    "data head config.yaml",
    "data verify config.yaml",
    "data find config.yaml --step 1",
    "data shuffle config.yaml",
    "compile config.yaml --set kubernetes.image=example/training:1 --set storage=/mnt --output pipeline.yaml",
    "status data/runs/small",
    "checkpoint list data/runs/small",
    "report config.yaml",
)

HEAVY = (
    "train config.yaml",
    "evaluate config.yaml",
    "run config.yaml",
    "replay data/runs/small --step 1",
    "checkpoint convert data/runs/small model",
)


def without_torch(program: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """`program` in a Python without torch, and so all that it starts."""
    (cwd / "sitecustomize.py").write_text(HIDE)
    path = os.pathsep.join([str(cwd), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=cwd,
        env=environment(PYTHONPATH=path),
        capture_output=True,
        text=True,
        timeout=240,
    )


def shardline(arguments: str, *, cwd: Path) -> subprocess.CompletedProcess[str]:
    program = "from shardline.pipelines.cli.main import main; main()"
    return without_torch(program, *arguments.split(), cwd=cwd)


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which each light command was called, in order."""
    folder = tmp_path_factory.mktemp("light")
    write(folder)
    for arguments in LIGHT:
        done = shardline(arguments, cwd=folder)
        assert done.returncode == 0, f"{arguments}\n{done.stderr}"
    return folder


def test_what_computes_with_no_model_works(sharded: Path) -> None:
    run = sharded / "data" / "runs" / "small"
    assert (run / "report.html").exists() and (run / "dataset.json").exists()
    assert (sharded / "pipeline.yaml").exists()


@pytest.mark.parametrize("arguments", HEAVY)
def test_the_rest_is_refused_with_one_message(arguments: str, sharded: Path) -> None:
    run = sharded / "data" / "runs" / "small"
    before = sorted(run.rglob("*"))
    done = shardline(arguments, cwd=sharded)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith(REFUSED) and len(done.stderr.splitlines()) == 1, done.stderr
    assert sorted(run.rglob("*")) == before


def test_run_says_so_before_it_begins(tmp_path: Path) -> None:
    write(tmp_path)
    assert shardline("run config.yaml", cwd=tmp_path).returncode == 3
    assert not (tmp_path / "data").exists()


def test_a_pipeline_task_is_refused_with_one_message(tmp_path: Path) -> None:
    program = (
        "from shardline.components.evaluation.component import evaluate\n"
        "function = evaluate.python_func\n"
        "function(*[None] * function.__code__.co_argcount)"
    )
    done = without_torch(program, cwd=tmp_path)
    assert done.returncode == 3 and done.stderr.splitlines()[-1].startswith(REFUSED), done.stderr
    assert "Traceback" not in done.stderr


def test_the_operator_begins(tmp_path: Path) -> None:
    """It runs in the light image; here there is no cluster for it, which is what it says."""
    program = (
        "import shardline.components.elasticity.operator.serve\n"
        "from shardline.pipelines.cli.main import main\n"
        "import os\n"
        "os.environ['KUBECONFIG'] = '/nonexistent'\n"
        "main()"
    )
    done = without_torch(program, "operator", cwd=tmp_path)
    assert done.returncode == 3 and done.stderr.startswith("error: no cluster to talk to"), done.stderr


def test_another_module_that_is_missing_stays_a_bug(tmp_path: Path) -> None:
    program = "from shardline.components.common import task\nwith task.running():\n    import nonexistent"
    done = without_torch(program, cwd=tmp_path)
    assert done.returncode == 1 and "ModuleNotFoundError: No module named 'nonexistent'" in done.stderr
