"""What the recipe of the container images promises, as far as it can be seen without building them.

`make test-images` builds and runs them.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "images"
TARGETS = ("light", "training")
TORCH = re.compile(r"(torch|triton|nvidia|cuda)")


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions with their arguments, without comments; continued lines are joined."""
    text = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    joined = re.sub(r"\\\n\s*", "", lines)
    return [(line.split()[0], line.partition(" ")[2]) for line in joined.splitlines() if line.strip()]


def stages() -> dict[str, list[tuple[str, str]]]:
    """The instructions of each stage, with those of the stage that it starts from before them."""
    found: dict[str, list[tuple[str, str]]] = {}
    name = ""
    for word, rest in instructions():
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            found[name] = list(found.get(base, []))
        if name:
            found[name].append((word, rest))
    return found


def last(stage: str, word: str) -> str:
    return [rest for found, rest in stages()[stage] if found == word][-1]


def host(image: str) -> str | None:
    """The registry that an image's name begins with, by the rule that docker has."""
    first, separator, _ = image.partition("/")
    return first if separator and re.search(r"[.:]|^localhost$", first) else None


def test_a_host_is_seen() -> None:
    assert host("registry.example/library/python:3.11") == "registry.example"
    assert host("localhost:5000/x") == "localhost:5000"
    assert host("python:3.11-slim") is None and host("pytorch/pytorch:2.13.0") is None


def test_no_registry_is_named() -> None:
    defaults = [rest.partition("=")[2] for word, rest in instructions() if word == "ARG" and "_IMAGE" in rest]
    bases = [rest.partition(" AS ")[0] for word, rest in instructions() if word == "FROM"]
    known = set(stages())
    assert len(defaults) == 2
    assert not [each for each in defaults if host(each)]
    assert not [each for each in bases if each not in known and not re.fullmatch(r"\$\{\w+_IMAGE\}", each)]
    assert "://" not in (FOLDER / "Dockerfile").read_text()


@pytest.mark.parametrize("target", TARGETS)
def test_it_runs_as_a_number_that_is_not_root(target: str) -> None:
    user, _, group = last(target, "USER").partition(":")
    assert int(user) > 0 and int(group) > 0


@pytest.mark.parametrize("target", TARGETS)
def test_no_shell_stands_between_the_kernel_and_the_command(target: str) -> None:
    assert json.loads(last(target, "ENTRYPOINT"))[-1] == "shardline"
    assert isinstance(json.loads(last(target, "CMD")), list)


@pytest.mark.parametrize("target", TARGETS)
def test_dependencies_come_before_the_code(target: str) -> None:
    sources = [rest.split()[0] for word, rest in stages()[target] if word == "COPY"]
    assert sources == [f"--from={target}-dependencies", "--from=code"]


def test_what_is_copied_is_there_and_let_through() -> None:
    let_through = (ROOT / ".dockerignore").read_text().splitlines()
    for word, rest in instructions():
        if word == "COPY" and not rest.startswith("--from="):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists()
                assert f"!{source}" in let_through or any(
                    Path(source).match(line.removeprefix("!")) for line in let_through if line.startswith("!images/")
                ), f"{source} is not in the build context"


def excluded() -> set[str]:
    lines = (FOLDER / "without-torch.txt").read_text().splitlines()
    return {line for line in lines if line and not line.startswith("#")}


def needed(requirement: Requirement, seen: set[str]) -> Iterator[str]:
    """The packages that a requirement brings without what is excluded, by what they say themselves."""
    name = re.sub(r"[-_.]+", "-", requirement.name).lower()
    if name in excluded() or name in seen:
        return
    seen.add(name)
    yield name
    extras = requirement.extras or {""}
    for text in metadata.requires(name) or []:
        inner = Requirement(text)
        if inner.marker is None or any(inner.marker.evaluate({"extra": extra}) for extra in extras):
            yield from needed(inner, seen)


def test_nothing_of_torch_is_in_the_light_image() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    seen: set[str] = set()
    names = [name for text in project["dependencies"] for name in needed(Requirement(text), seen)]
    assert "torch" in excluded() and "pyarrow" in names and len(names) > 40
    assert not [name for name in names if TORCH.match(name)]


def test_everything_else_that_the_project_needs_is() -> None:
    """What is excluded is torch, and not more than the project asks for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert excluded() <= {Requirement(text).name for text in project["dependencies"]}


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """An empty virtual environment, as far as the script looks."""
    packages = tmp_path / "venv" / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    return packages


def find_torch(folder: Path, environment: Path, version: str | None) -> subprocess.CompletedProcess[str]:
    """images/find_torch.py in a Python that has torch `version` and nothing else."""
    base = folder / "dist-packages"
    base.mkdir()
    if version:
        (base / f"torch-{version}.dist-info").mkdir()
        (base / f"torch-{version}.dist-info" / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n"
        )
    program = (
        "import runpy, sys\n"
        "script, base, venv = sys.argv[1:]\n"
        "sys.path = [path for path in sys.path if not path.endswith('-packages')] + [base]\n"
        "sys.argv = [script, venv]\n"
        "runpy.run_path(script, run_name='__main__')\n"
    )
    command = [sys.executable, "-I", "-c", program, FOLDER / "find_torch.py", base, environment.parents[2]]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize("version", ["2.13.0", "2.13.1+cu130", "2.13.0a0+5228986c39"])
def test_the_torch_of_the_base_is_seen_after_the_pinned_packages(
    version: str, environment: Path, tmp_path: Path
) -> None:
    done = find_torch(tmp_path, environment, version)
    assert (done.returncode, done.stdout, done.stderr) == (0, "torch\n", "")
    (file,) = environment.iterdir()
    assert file.suffix == ".pth" and file.read_text() == f"{tmp_path / 'dist-packages'}\n"


def test_without_a_torch_in_the_base_none_is_excluded(environment: Path, tmp_path: Path) -> None:
    done = find_torch(tmp_path, environment, None)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not list(environment.iterdir())


@pytest.mark.parametrize("version", ["2.12.1", "2.14.0", "2.130.0", "3.0.0"])
def test_another_torch_in_the_base_is_refused(version: str, environment: Path, tmp_path: Path) -> None:
    done = find_torch(tmp_path, environment, version)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == f"the base image has torch {version}; shardline needs torch 2.13\n"


@pytest.mark.parametrize("target", [None, "heavy"])
def test_a_wrong_target_is_told(target: str | None) -> None:
    done = subprocess.run([FOLDER / "build.sh", *filter(None, [target])], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "shardline: usage: images/build.sh light|training [options]\n"


def test_a_machine_without_a_build_tool_is_told(tmp_path: Path) -> None:
    for name in ("bash", "dirname", "env"):
        (tmp_path / name).symlink_to(Path("/usr/bin") / name)
    done = subprocess.run([FOLDER / "build.sh", "light"], env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 3
    assert done.stderr.startswith("shardline: images need buildah, podman or a running docker")
