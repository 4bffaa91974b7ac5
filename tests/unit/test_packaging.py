"""What is installed is the tree: every file, under `shardline`, with limits that fit the ranges."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = ("components", "pipelines")


def files_of(tree: Path) -> Iterator[Path]:
    """The files that are part of the packages in `tree`, relative to it."""
    for folder in FOLDERS:
        for path in sorted((tree / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path.relative_to(tree)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy to build in: a `build` folder left in the tree would put modules into the wheel that are long gone."""
    tree = tmp_path_factory.mktemp("tree")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    project = PROJECT["project"]
    for name in ("pyproject.toml", *project["license-files"], *filter(None, [project.get("readme")])):
        shutil.copy(ROOT / name, tree)
    return tree


@pytest.fixture(scope="module")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, made from the source distribution: so that one is complete, too."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, tree, cwd=folder)
    (found,) = folder.glob("*.whl")
    return found


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    done = subprocess.run(command, cwd=cwd, env=os.environ | variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_wheel_holds_the_tree_and_nothing_else(wheel: Path, tree: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    content = {name for name in names if not name.startswith(f"shardline-{PROJECT['project']['version']}.dist-info/")}
    assert content == {f"shardline/{path.as_posix()}" for path in files_of(tree)}
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_command_of_the_wheel_is_there(wheel: Path) -> None:
    module = PROJECT["project"]["scripts"]["shardline"].partition(":")[0]
    assert module.replace(".", "/") + ".py" in zipfile.ZipFile(wheel).namelist()


@pytest.mark.parametrize("source", ["tree", "wheel"])
def test_installed_package_is_imported_from_where_it_was_installed(
    source: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    target = tmp_path / "site"
    options = ("--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--target", target)
    run(sys.executable, "-m", "pip", "install", *options, request.getfixturevalue(source), cwd=tmp_path)
    program = "import shardline.components.common.config as c, shardline.pipelines as p; print(c.__file__, p.__file__)"
    found = run(sys.executable, "-c", program, cwd=tmp_path, PYTHONPATH=str(target)).split()
    assert [Path(file).is_relative_to(target) for file in found] == [True, True]


def test_every_folder_with_modules_is_a_package_and_listed() -> None:
    folders = {path.parent for path in files_of(ROOT) if path.suffix == ".py"}
    listed = PROJECT["tool"]["setuptools"]["packages"]
    assert {f"shardline.{'.'.join(folder.parts)}" for folder in folders} == set(listed)
    assert not [folder for folder in folders if not (ROOT / folder / "__init__.py").exists()]


def test_version_is_told_by_the_metadata() -> None:
    assert importlib.metadata.version("shardline") == PROJECT["project"]["version"]


def bare_imports(source: str, name: str) -> list[int]:
    """The lines of `source` that import `components` or `pipelines` without `shardline.` before it."""
    lines = []
    for node in ast.walk(ast.parse(source, name)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        else:
            continue
        lines += [node.lineno for name in names if name.partition(".")[0] in FOLDERS]
    return lines


def test_bare_imports_are_seen() -> None:
    bare = ["import os, components.common", "from pipelines import cli"]
    fine = ["import shardline.pipelines", "from shardline import components", "from . import pipelines"]
    assert bare_imports("\n".join(bare + fine), "x.py") == [1, 2]


def test_no_module_is_imported_by_its_bare_name() -> None:
    files = [path for folder in (*FOLDERS, "tests", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py")]
    assert files
    assert not [f"{path}:{line}" for path in files for line in bare_imports(path.read_text("utf-8"), str(path))]


def constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert not [line for line in lines if not re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?==[0-9][0-9a-z.]*", line)]
    pairs = [(name, version) for name, _, version in (line.partition("==") for line in lines)]
    assert len(pairs) == len({name for name, _ in pairs})
    return dict(pairs)


def test_constraints_fit_the_ranges() -> None:
    pinned = constraints()
    project = PROJECT["project"]
    texts = [*project["dependencies"], *project["optional-dependencies"]["dev"], *PROJECT["build-system"]["requires"]]
    wrong = []
    for requirement in map(Requirement, texts):
        version = pinned.get(requirement.name.lower())
        if version is None or version not in requirement.specifier:
            wrong.append(f"{requirement}: constraints.txt has {version}")
    assert not wrong
