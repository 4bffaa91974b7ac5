"""The training image on a base that brings torch: a stand-in of a few lines takes its place here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.images.containers import Builder


def with_torch(builder: Builder, base: str, version: str, folder: Path) -> str:
    """An image like `base` with a package that calls itself torch `version`."""
    name = f"localhost/with-torch:{version.replace('+', '-')}-{builder.identity(base)[:12]}"
    if builder.has(name):  # made again it would be another, and so would all that is built on it
        return name
    packages = folder / "usr/lib/python3/dist-packages"
    (packages / "torch").mkdir(parents=True)
    (packages / "torch/__init__.py").write_text(f'__version__ = "{version}"\n')
    (packages / f"torch-{version}.dist-info").mkdir()
    (packages / f"torch-{version}.dist-info/METADATA").write_text(
        f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n"
    )
    builder.image_of(name, folder, base=base)
    return name


def test_the_torch_of_the_base_is_the_one_that_is_used(builder: Builder, base: str, tmp_path: Path) -> None:
    with_its_own = with_torch(builder, base, "2.13.1+cu130", tmp_path)
    image = builder.built("training", base=with_its_own, build_base=base)
    assert not list(image.tree.glob("opt/shardline/lib/python3.*/site-packages/torch"))
    program = "import numpy, torch; print(torch.__version__, numpy.__file__)"
    version, numpy = image.run("-c", program, command=("python3",)).stdout.split()
    assert version == "2.13.1+cu130"
    assert numpy.startswith("/opt/shardline/")
    assert image.run("--version").returncode == 0


@pytest.mark.parametrize("version", ["2.12.1", "2.14.0"])
def test_another_torch_in_the_base_is_refused(version: str, builder: Builder, base: str, tmp_path: Path) -> None:
    built = builder.build("training", base=with_torch(builder, base, version, tmp_path), build_base=base)
    assert built.returncode != 0
    assert f"the base image has torch {version}; shardline needs torch 2.13" in built.stdout + built.stderr
