"""A model that transformers wrote, and a copy of it that a test may damage."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.pretrained import save


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    save(folder)
    return folder


@pytest.fixture
def model(made: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(made, tmp_path / "model"))
