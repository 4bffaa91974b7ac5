"""The command line from outside: exit codes, what goes to stdout and what to stderr, and how errors read."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import jsonschema
import pytest
import yaml

from shardline.components.common.config import absolute, load
from shardline.components.common.runfolder import adopt_config
from shardline.components.common.storage import Storage
from tests.commands import SMALL, shardline, write

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "examples").rglob("*.yaml"))
COMMANDS = [
    "run",
    "compile",
    "render",
    "shard",
    "plan",
    "train",
    "evaluate",
    "report",
    "status",
    "checkpoint",
    "move",
    "nodes",
    "config",
]


def test_version(tmp_path: Path) -> None:
    done = shardline("--version", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"shardline {version('shardline')}\n")


def test_start_up_imports_nothing_heavy() -> None:
    heavy = ["torch", "kfp", "kubernetes", "pydantic", "pyarrow", "fsspec", "numpy"]
    code = f"import sys, shardline.pipelines.cli.main; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_help_names_every_command_in_full(tmp_path: Path) -> None:
    done = shardline("--help", cwd=tmp_path, COLUMNS="80")
    assert done.returncode == 0
    commands = done.stdout.partition("Commands:")[2]
    assert set(COMMANDS) <= {line.split()[0] for line in commands.splitlines() if line.strip()}
    assert "..." not in commands


MISTAKES = {
    "unknown key": (SMALL + "evaluaton: {}\n", [], ["config.yaml:9: evaluaton", "did you mean evaluation?"]),
    "wrong type": (SMALL.replace("steps: 4", "steps: many"), [], ["config.yaml:7: training.steps", '"many"']),
    "missing key": (SMALL.replace("run: small\n", ""), [], ["run: is missing"]),
    "not YAML": ("run: [\n", [], ["config.yaml:2: not valid YAML"]),
    "not a mapping": ("hello\n", [], ["should be a mapping"]),
    "batch": (SMALL.replace("global_batch: 4", "global_batch: 5"), [], ["training.global_batch = 5", "4 or 6"]),
    "override of nothing": (SMALL, ["--set", "training.step=3"], ["--set: training.step", "training.steps"]),
    "override without value": (SMALL, ["--set", "training.steps"], ["KEY=VALUE"]),
    "no scheme": (SMALL, ["--root", "nowhere9://x"], ["nowhere9"]),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_message_and_exit_code_2(name: str, tmp_path: Path) -> None:
    text, options, expected = MISTAKES[name]
    write(tmp_path, text)
    done = shardline("run", "config.yaml", *options, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), done.stderr
    for part in expected:
        assert part in lines[0]


def test_each_problem_has_a_line(tmp_path: Path) -> None:
    write(tmp_path, SMALL.replace("steps: 4", "steps: 0").replace("microbatch: 2", "microbatch: no"))
    done = shardline("config", "check", "config.yaml", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert [line.split(": ")[2].split(" ")[0] for line in done.stderr.splitlines()] == [
        "training.steps",
        "training.microbatch",
    ]


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("missing file", ["run", "nothing.yaml"], "nothing.yaml: not found"),
        ("folder", ["run", "."], ".: is a folder; name a YAML file"),
        ("not text", ["config", "show", "binary.yaml"], "binary.yaml: is not a UTF-8 text file"),
        ("no run", ["status", "nothing"], "no run is here"),
    ],
)
def test_what_is_not_there(name: str, arguments: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    done = shardline(*arguments, cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: ") and message in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["train", "evaluate", "report"])
def test_a_step_of_a_run_that_does_not_exist_leaves_nothing(command: str, tmp_path: Path) -> None:
    write(tmp_path)
    done = shardline(command, "config.yaml", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    run = tmp_path / "data" / "runs" / "small"
    assert done.stderr == f"error: {run}: no run is here; run `shardline shard CONFIG` first\n"
    assert not (tmp_path / "data").exists()


def test_check_tells_problems_as_json_too(tmp_path: Path) -> None:
    write(tmp_path, SMALL.replace("steps: 4", "steps: 0"))
    done = shardline("config", "check", "config.yaml", "--json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "")
    problem = "config.yaml:7: training.steps = 0: should be greater than or equal to 1"
    assert json.loads(done.stdout) == {"valid": False, "problems": [problem]}


def test_check_notes_text_that_is_not_there(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "here.txt").write_text("text")
    done = shardline("config", "check", "config.yaml", "--set", "corpus=[here.txt, gone, '*.md']", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "config.yaml: valid\n")
    assert done.stderr.splitlines() == [
        f"note: corpus.urls.1 = {tmp_path}/gone: nothing is there",
        f"note: corpus.urls.2 = {tmp_path}/*.md: nothing is there",
    ]


def test_check_refuses_what_run_would_and_writes_nothing(tmp_path: Path) -> None:
    write(tmp_path)
    run = Storage(str(tmp_path / "data" / "runs" / "small"))
    adopt_config(run, absolute(load(str(tmp_path / "config.yaml")).config))
    run.write("dataset.json", b"{}")
    before = run.read("config.yaml")
    options = ["--root", "data", "--set", "training.seed=7"]
    done = shardline("config", "check", "config.yaml", *options, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "training.seed = 7: this run began with 0" in done.stderr
    assert run.read("config.yaml") == before and run.names() == ["config.yaml", "dataset.json"]


def test_plan_is_a_table_and_complete_as_json(tmp_path: Path) -> None:
    write(tmp_path)
    done = shardline("plan", "config.yaml", "--set", "resources.processes=2", cwd=tmp_path)
    names = [line.split()[0] for line in done.stdout.splitlines()]
    assert names == ["layout", "why", "or", "or", "processes", "model", "training"], done.stderr
    assert "2 (resources.processes)" in done.stdout
    shown = json.loads(shardline("plan", "config.yaml", "--json", cwd=tmp_path).stdout)
    assert {"layout", "reason", "candidates", "processes", "processes_from", "tokens"} <= set(shown)
    assert not (tmp_path / "data").exists()


def test_a_wrong_option_is_a_mistake_of_the_user(tmp_path: Path) -> None:
    done = shardline("run", "--nonsense", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")


def test_show_has_overrides_and_absolute_paths(tmp_path: Path) -> None:
    write(tmp_path)
    options = ["--set", "training.steps=7", "--set", "training.optimizer.lr=3e-3", "--set", "corpus=stdlib:json"]
    done = shardline("config", "show", "config.yaml", "--json", *options, cwd=tmp_path)
    shown = json.loads(done.stdout)
    assert shown["training"]["steps"] == 7
    assert shown["training"]["optimizer"]["lr"] == 0.003
    assert shown["corpus"]["urls"] == ["stdlib:json"]
    assert shown["storage"] == str(tmp_path / "data")


def test_show_prints_a_config_that_means_the_same(tmp_path: Path) -> None:
    write(tmp_path)
    first = shardline("config", "show", "config.yaml", cwd=tmp_path).stdout
    write(tmp_path, first, "again.yaml")
    assert shardline("config", "show", "again.yaml", cwd=tmp_path).stdout == first


def test_the_root_option_wins_over_the_environment(tmp_path: Path) -> None:
    write(tmp_path)

    def storage(*options: str) -> str:
        shown = shardline(
            "config", "show", "config.yaml", "--json", *options, cwd=tmp_path, SHARDLINE_ROOT="s3://env/x"
        )
        return str(json.loads(shown.stdout)["storage"])

    assert storage() == "s3://env/x"
    assert storage("--root", "s3://option/x") == "s3://option/x"


@pytest.fixture(scope="module")
def schema() -> dict[str, object]:
    done = shardline("config", "schema", cwd=ROOT)
    return dict(json.loads(done.stdout))


def test_the_schema_is_a_schema(schema: dict[str, object]) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_valid(path: Path, schema: dict[str, object]) -> None:
    load(str(path))
    jsonschema.validate(yaml.safe_load(path.read_text()), schema)


def test_the_schema_knows_short_forms_and_refuses_unknown_keys(schema: dict[str, object]) -> None:
    config = yaml.safe_load(SMALL)
    for corpus in ("a.txt", ["a", "b"], {"urls": "a"}):
        jsonschema.validate({**config, "corpus": corpus}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**config, "corpse": "a.txt"}, schema)
