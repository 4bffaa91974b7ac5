"""An optimizer that waits for workers, so that a run of seconds lasts until the pods it is about have come.

Named by `training.optimizer.name` of a run. Its steps have the result that they have without it.
"""

from __future__ import annotations

import os
import time
from typing import Any

import torch.distributed as dist

from shardline.components.training.optimizer import AdamW

WORKERS = "SHARDLINE_TEST_WORKERS"
NAME = f"{__name__}:Paced"
_SECONDS = 1.0


class Paced(AdamW):
    """AdamW that takes its time for a step while there are fewer workers than the environment says."""

    def step(self, closure: Any = None) -> Any:
        if dist.get_world_size() < int(os.environ.get(WORKERS, 0)):
            time.sleep(_SECONDS)
        return super().step(closure)
