"""What this machine has to train with. Asked without torch, as planning and the command line must stay light."""

from __future__ import annotations

import os
import re
from pathlib import Path

from shardline.components.common.config import RunConfig

#: Without a device, two processes are enough to show what a layout does and not too many for a laptop.
_WITHOUT_DEVICES = 2


def devices() -> int:
    """CUDA devices that this process may use."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([part for part in visible.split(",") if part.strip() and part.strip() != "-1"])
    return len([path for path in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)])


def processes(config: RunConfig) -> int:
    """Training processes to start on this machine: `resources.processes`, or as many as layout and devices suggest."""
    wanted = config.resources.processes
    if wanted != "auto":
        return wanted
    layout = config.training.layout
    axes = (layout.pp, layout.dp_replicate, layout.dp_shard)
    fixed = 1
    for axis in axes:
        fixed *= 1 if axis == "auto" else axis
    if layout.pp != "auto" and layout.dp_shard != "auto":
        return fixed
    available = devices() if config.resources.device != "cpu" else 0
    return max(1, (available or _WITHOUT_DEVICES) // fixed) * fixed
