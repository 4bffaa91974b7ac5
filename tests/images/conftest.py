"""The images that the tests of this folder look at: built once, by the commands that a user has, from a base made here.

Not part of the default suite: `make test-images` runs it. SHARDLINE_TEST_BASE_IMAGE names another base, to be pulled.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.images.containers import Builder, Image, lacking

BASE = "localhost/base:1"


def pytest_configure(config: pytest.Config) -> None:
    missing = lacking()
    if missing:
        pytest.exit(f"the tests of the images need {missing} (Debian: buildah, runc, debootstrap)", returncode=3)


@pytest.fixture(scope="session")
def builder() -> Iterator[Builder]:
    # Not pytest's own folders, of which it keeps some: these are large.
    with tempfile.TemporaryDirectory(prefix="shardline-images-") as folder:
        # Any user looks up what lies in it.
        Path(folder).chmod(0o755)
        builder = Builder(Path(folder))
        yield builder
        builder.remove_all()


@pytest.fixture(scope="session")
def base(builder: Builder) -> str:
    given = os.environ.get("SHARDLINE_TEST_BASE_IMAGE")
    if not given:
        builder.base(BASE)
    return given or BASE


@pytest.fixture(scope="session")
def light(builder: Builder, base: str) -> Image:
    return builder.built("light", base=base)
