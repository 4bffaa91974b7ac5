"""The light image, run as a restricted pod runs it: what it is made of, and a corpus sharded in it."""

from __future__ import annotations

import json
import re
from importlib import metadata
from pathlib import Path

import pytest

from tests.commands import SMALL
from tests.images.containers import ROOT, USER, VERSION, Builder, Image, run

TORCH = re.compile(r"(torch|triton|nvidia|cuda)")
CONFIG = SMALL.replace("./data", "/data/store")


def packages(image: Image) -> dict[str, str]:
    """The distributions in the image's environment, with their versions."""
    (site,) = image.tree.glob("opt/shardline/lib/python3.*/site-packages")
    found = metadata.distributions(path=[str(site)])
    return {re.sub(r"[-_.]+", "-", each.name).lower(): each.version for each in found}


def test_it_says_what_it_is(light: Image) -> None:
    labels = light.config["Labels"]
    assert labels["org.opencontainers.image.title"] == "shardline light"
    assert labels["org.opencontainers.image.version"] == VERSION
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    head = run("git", "rev-parse", "HEAD").strip()
    assert labels["org.opencontainers.image.revision"].removesuffix("-modified") == head


def test_it_says_so_where_every_layer_was_there_before(
    builder: Builder, base: str, light: Image, tmp_path: Path
) -> None:
    """Another revision of the sources with the same wheel: nothing is made anew but what the label says."""
    git = ("git", "-c", "user.name=x", "-c", "user.email=x@example", "-C", str(tmp_path))
    run(*git, "init", "--quiet")
    run(*git, "commit", "--quiet", "--allow-empty", "--message", "another")
    again = builder.built("light", base=base, GIT_DIR=str(tmp_path / ".git"), SOURCE="https://sources.example")
    another = run(*git, "rev-parse", "HEAD").strip()
    assert again.config["Labels"]["org.opencontainers.image.revision"] == f"{another}-modified"
    assert again.config["Labels"]["org.opencontainers.image.source"] == "https://sources.example"
    assert again.layers == light.layers


def test_its_packages_are_the_pinned_ones_and_none_is_of_torch(light: Image) -> None:
    found = packages(light)
    assert found.pop("shardline") == VERSION
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines())
    assert {name: version for name, version in found.items() if pins.get(name) != version} == {}
    assert not [name for name in found if TORCH.match(name)]


def test_nothing_is_left_of_its_making(light: Image) -> None:
    """Records of what is installed stay, for bills of materials."""
    assert "Package: tini\n" in (light.tree / "var/lib/dpkg/status").read_text()
    for name in ("build", "root/.cache", "usr/local/bin/uv", "usr/bin/gcc"):
        assert not (light.tree / name).exists(), name
    for name in ("tmp", "var/lib/apt/lists", "var/cache/apt"):
        assert not list((light.tree / name).iterdir()), name


def test_code_is_a_layer_of_its_own(builder: Builder, base: str, light: Image) -> None:
    """A new version of the code brings no dependency again: they are the layer before."""
    built = builder.build("light", base=base)
    assert built.returncode == 0
    assert built.stdout.count("Using cache") > 10
    assert light.layers == builder.open(base).layers + 3


def test_nothing_in_it_can_be_written(light: Image) -> None:
    program = "import os, pathlib; print(os.getuid()); pathlib.Path('/tmp/x').touch(); pathlib.Path('/x').touch()"
    done = light.run("-c", program, command=("python3",))
    assert done.stdout.strip() == str(USER)
    assert done.returncode == 1 and "Read-only file system" in done.stderr


def test_no_bytecode_is_missing_or_stale(light: Image) -> None:
    """A read-only file system takes none later, and each start would compile anew."""
    program = "import shardline.pipelines.cli.main, kfp, kubernetes.client"
    done = light.run("-v", "-c", program, command=("python3",))
    assert done.returncode == 0
    loaded = [line for line in done.stderr.splitlines() if line.startswith("# code object from")]
    assert [line for line in loaded if ".pyc" not in line and "/opt/shardline/" in line] == []
    assert len(loaded) > 500


@pytest.fixture(scope="module")
def sharded(builder: Builder, light: Image) -> Path:
    """A volume with a data set, made in a container."""
    volume = builder.folder / "sharded"
    volume.mkdir()
    volume.chmod(0o777)
    (volume / "config.yaml").write_text(CONFIG)
    done = light.run("shard", "/data/config.yaml", "--json", volumes={"/data": volume})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["blocks"] > 0
    return volume


LIGHT = (
    "config check /data/config.yaml",
    "plan /data/config.yaml",
    "data info /data/config.yaml",
    "data verify /data/config.yaml",
    "data find /data/config.yaml --step 1",
    "status /data/store/runs/small",
    "checkpoint list /data/store/runs/small",
    "report /data/config.yaml",
    "compile /data/config.yaml --set kubernetes.image=example/training:1 -o /tmp/pipeline.yaml",
)


@pytest.mark.parametrize("arguments", LIGHT)
def test_what_needs_no_torch_works(arguments: str, light: Image, sharded: Path) -> None:
    done = light.run(*arguments.split(), volumes={"/data": sharded})
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", ["train", "evaluate", "run"])
def test_what_needs_torch_is_refused(command: str, light: Image, sharded: Path) -> None:
    done = light.run(command, "/data/config.yaml", volumes={"/data": sharded})
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("error: this needs torch, which is not installed; "), done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_signal_reaches_the_command_and_its_code_comes_back(light: Image, sharded: Path) -> None:
    """tini hands SIGTERM on: without a handler the kernel would keep it from process 1."""
    program = "import os, signal; os.kill(os.getppid(), signal.SIGTERM); signal.pause()"
    done = light.run("-c", program, command=("/usr/bin/tini", "-s", "--", "python3"))
    assert done.returncode == 143
