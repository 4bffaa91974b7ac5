"""What the tests of whole runs share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed import runs


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the data set of all runs below it, for one module."""
    folder = tmp_path_factory.mktemp("runs")
    runs.prepare(folder)
    return folder
