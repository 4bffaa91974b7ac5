"""A run's folder, held by this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shardline.components.common.owner import Lease, hold
from shardline.components.common.storage import Storage


@pytest.fixture
def run(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path / "run"))


@pytest.fixture
def lease(run: Storage) -> Iterator[Lease]:
    with hold(run) as lease:
        yield lease
