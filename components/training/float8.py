"""Layers that multiply matrices in float8, by torchao: each operand scaled by its largest value, anew each time.

Called by `parallel`, between building a stage and compiling it. Parameters, their names and their gradients stay what
they are under bf16; inputs, weights and gradients are rounded to eight bits for the products alone (arXiv:2209.05433:
e4m3 forwards, e5m2 for gradients). The embedding and the output head stay in bf16, where rounding costs the most.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import torch
from torch import nn

from shardline.components.common.errors import EnvironmentLacking

_KEY = "training.precision"
#: Of NVIDIA's GPUs: Ada has it, and Hopper.
_CAPABILITY = (8, 9)
#: Rows and columns of what the device multiplies come in these numbers.
MULTIPLE = 16


def check(device: torch.device) -> None:
    """Raises EnvironmentLacking where the device cannot multiply in float8."""
    if device.type != "cuda":
        found = "this worker computes on a CPU"
    elif (capability := torch.cuda.get_device_capability(device)) < _CAPABILITY:
        found = f"this worker's, {torch.cuda.get_device_name(device)}, has {'.'.join(map(str, capability))}"
    else:
        return
    wanted = ".".join(map(str, _CAPABILITY))
    raise EnvironmentLacking(
        f"float8 needs GPUs of compute capability {wanted} or more; {found}",
        where=_KEY,
        hint="take other GPUs, or bf16",
    )


def use_float8(layers: Iterable[nn.Module], *, emulated: bool = False) -> None:
    """Have the linear maps in `layers` multiply in float8.

    Args:
        emulated: round as float8 does and multiply in what there is, on any device: for tests.

    Raises:
        EnvironmentLacking: torchao is not there.
    """
    try:
        # It tells of each kernel that it was not built with, and there are some for every device.
        logging.getLogger("torchao").setLevel(logging.ERROR)
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    except ImportError as error:
        raise EnvironmentLacking(
            f"float8 needs torchao: {error}", where=_KEY, hint="pip install shardline[float8], or take bf16"
        ) from error
    # Products sum over a microbatch's tokens, too, which may be any number.
    config = Float8LinearConfig(emulate=emulated, pad_inner_dim=True)
    for layer in layers:
        convert_to_float8_training(layer, config=config, module_filter_fn=_fits)


def _fits(module: nn.Module, name: str) -> bool:
    return isinstance(module, nn.Linear) and not (module.in_features % MULTIPLE or module.out_features % MULTIPLE)
