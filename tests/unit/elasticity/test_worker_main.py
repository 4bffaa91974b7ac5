"""What a worker process refuses before it begins."""

from __future__ import annotations

import pytest
import torch

from shardline.components.common.errors import EnvironmentLacking
from shardline.components.elasticity.worker_main import _check_version


def test_another_torch_is_refused() -> None:
    _check_version(torch.__version__)
    for version in ("2.12.1", "2.14.0+cpu", "3.0.0", "2.130.0"):
        with pytest.raises(EnvironmentLacking, match=r"private parts of torch 2\.13.*install torch 2\.13"):
            _check_version(version)
