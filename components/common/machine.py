"""What this machine or container has to train with.

Asked without torch, as planning and the command line must stay light.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
from pathlib import Path

from shardline.components.common.config import RunConfig
from shardline.components.common.errors import EnvironmentLacking

#: Without a device, two processes are enough to show what a layout does and not too many for a laptop.
_WITHOUT_DEVICES = 2
#: The files of a container's own memory: limit, usage, and the field of memory.stat that the kernel can take back.
_CGROUP_2 = ("memory.max", "memory.current", "inactive_file")
_CGROUP_1 = ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file")
#: cgroup 1 says "no limit" by a number near 2^63.
_NO_LIMIT = 1 << 60


def has_torch() -> bool:
    """Whether this machine can compute with a model: the light container image has no torch."""
    return importlib.util.find_spec("torch") is not None


def without_torch() -> EnvironmentLacking:
    """The error of something that needs torch where there is none."""
    return EnvironmentLacking(
        "this needs torch, which is not installed",
        hint="`pip install shardline` brings it; of the container images, the training image has it",
    )


def devices() -> int:
    """CUDA devices that this process may use."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([part for part in visible.split(",") if part.strip() and part.strip() != "-1"])
    return len([path for path in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)])


def device(config: RunConfig, *, world: int) -> str:
    """What `world` processes on this machine compute on: "cuda" or "cpu".

    Raises:
        EnvironmentLacking: CUDA devices are asked for, and there are fewer than processes.
    """
    wanted, there = config.resources.device, devices()
    if wanted == "cuda" and there < world:
        raise EnvironmentLacking(
            f"{world} training processes need a CUDA device each; this machine has {there}",
            where="resources.device",
            hint="set resources.processes to what there is, or resources.device to cpu",
        )
    return "cuda" if wanted != "cpu" and there >= world else "cpu"


def processes(config: RunConfig) -> int:
    """Training processes to start on this machine: `resources.processes`, or as many as layout and devices suggest."""
    return processes_and_why(config)[0]


def processes_and_why(config: RunConfig) -> tuple[int, str]:
    """As `processes`, with where the number comes from."""
    wanted = config.resources.processes
    if wanted != "auto":
        return wanted, "resources.processes"
    layout = config.training.layout
    axes = (layout.pp, layout.dp_replicate, layout.dp_shard, layout.tp, layout.cp)
    fixed = 1
    for axis in axes:
        fixed *= 1 if axis == "auto" else axis
    if layout.pp != "auto" and layout.dp_shard != "auto":
        return fixed, "training.layout"
    available = devices() if config.resources.device != "cpu" else 0
    number = max(1, (available or _WITHOUT_DEVICES) // fixed) * fixed
    if number == fixed > 1:
        return number, "training.layout"
    devices_here = f"the {available} devices of this machine" if available else "the default without devices"
    return number, f"{devices_here}; resources.processes is auto"


def pod_memory(root: Path = Path("/sys/fs/cgroup")) -> tuple[int | None, int | None]:
    """Bytes that this container uses and may use, as the kubelet counts them; None without a limit or without cgroups.

    Used is what the kernel can't take back: usage without inactive file pages (the working set of cAdvisor).
    """
    for limit_file, usage_file, reclaimable in (_CGROUP_2, _CGROUP_1):
        with contextlib.suppress(OSError, ValueError):
            limit = int((root / limit_file).read_text())
            stat = (root / limit_file).with_name("memory.stat").read_text()
            fields = dict(line.split(maxsplit=1) for line in stat.splitlines())
            used = int((root / usage_file).read_text()) - int(fields.get(reclaimable, 0))
            return (max(0, used), limit) if limit < _NO_LIMIT else (None, None)
    return None, None
