"""The images that the tests of this folder look at, built by the commands that a user has, on the base of the box.

Not part of the default suite: `make test-images` runs it. SHARDLINE_TEST_BASE_IMAGE names another base, to be pulled.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.images.containers import Builder, Image, lacking
from tests.images.containers import builder as made


def pytest_configure(config: pytest.Config) -> None:
    missing = lacking()
    if missing:
        pytest.exit(f"the tests of the images need {missing} (Debian: buildah, runc, debootstrap)", returncode=3)


@pytest.fixture(scope="session")
def builder() -> Iterator[Builder]:
    with made() as builder:
        yield builder


@pytest.fixture(scope="session")
def base(builder: Builder) -> str:
    return builder.base()


@pytest.fixture(scope="session")
def light(builder: Builder, base: str) -> Image:
    return builder.built("light", base=base)
