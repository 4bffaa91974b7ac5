"""What holds for every test: no setting of the person who runs them, one thread a process, each module loaded once."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

# Before torch and tokenizers are imported: tests start several processes on few cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A storage root or a registry of the person's own must not be read, nor written to.
os.environ.pop("SHARDLINE_ROOT", None)
os.environ["HF_HUB_OFFLINE"] = "1"


@pytest.fixture(scope="session", autouse=True)
def modules_are_loaded_under_one_name() -> Iterator[None]:
    """`components.x` beside `shardline.components.x` would be a second module, with other classes than the first."""
    yield
    bare = sorted(name for name in sys.modules if name.partition(".")[0] in {"components", "pipelines"})
    assert not bare, f"imported without `shardline.` before it: {', '.join(bare)}"
