"""A model cut up by a layout: this rank's stages, shared by tensor, sharded by FSDP2, and the process groups they need.

Called by `session`. The order is: build the rank's stages on the meta device, share the weights of each layer, compile,
shard, allocate, fill; no rank ever holds the whole model.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from shardline.components.common.config.presets import ModelShape
from shardline.components.common.errors import EnvironmentLacking, UserError
from shardline.components.planning.layout import Layout, Place, split_layers
from shardline.components.training import float8
from shardline.components.training.attention import WholeSamples
from shardline.components.training.classes import MODEL_KEY, check_stages, model_class
from shardline.components.training.context import SharedSamples
from shardline.components.training.initial import initialise
from shardline.components.training.model import Transformer

#: What parameters are kept in, by `training.precision`. bf16 keeps fp32 and computes in bf16, and so does float8.
PARAMETER_DTYPES = {"fp32": torch.float32, "bf16": torch.float32, "fp64": torch.float64, "float8": torch.float32}
_MIXED = ("bf16", "float8")


@dataclass(frozen=True, kw_only=True)
class Parts:
    """This rank's share of a model of `shape`.

    Attributes:
        stages: its stages, by their number, in the order they are run.
        place: this rank's place on each axis.
        pp_group, dp_group, tp_group: the ranks that differ from this one in that axis alone.
    """

    stages: dict[int, nn.Module]
    shape: ModelShape
    layout: Layout
    place: Place
    pp_group: dist.ProcessGroup
    dp_group: dist.ProcessGroup
    tp_group: dist.ProcessGroup
    device: torch.device

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        for stage in self.stages.values():
            yield from stage.named_parameters()

    @property
    def has_last_stage(self) -> bool:
        return self.layout.stages - 1 in self.stages


def lay_out(
    shape: ModelShape,
    *,
    layout: Layout,
    rank: int,
    device: torch.device,
    precision: str,
    seed: int,
    compiled: bool = False,
    named: str | None = None,
) -> Parts:
    """Build this rank's part of the model, with its initial values.

    The default process group must be there. All ranks call it together.

    Args:
        compiled: compile each layer.
        named: the class of a model of one's own, as the config names it.

    Raises:
        EnvironmentLacking: to compile takes a C++ compiler, and float8 a device for it and torchao.
        UserError: there is no such class, or it is not one that can be laid out so.
    """
    if compiled:
        _check_compiler()
    if precision == "float8":
        float8.check(device)
    # Ranks that share samples hold the same parameters, so the two axes of context and shards are one to FSDP.
    mesh = init_device_mesh(
        device.type,
        (layout.pp, layout.dp_replicate, layout.dp_shard * layout.cp, layout.tp),
        mesh_dim_names=("pp", "dp_replicate", "dp_shard_cp", "tp"),
    )
    groups = init_device_mesh(
        device.type, (layout.pp, layout.dp, layout.cp, layout.tp), mesh_dim_names=("pp", "dp", "cp", "tp")
    )
    place = layout.place(rank)
    attend = SharedSamples(groups.get_group("cp")) if layout.cp > 1 else WholeSamples()
    layers = split_layers(shape.layers, layout.stages)
    build = model_class(named)
    if named:
        check_stages(build, shape, cuts=layers, name=named)
    stages: dict[int, nn.Module] = {}
    for index in layout.stages_of(place.pp):
        with torch.device("meta"):
            stage = build(shape, layers=layers[index], attend=attend, recompute=layout.recompute)
            stage = stage.to(PARAMETER_DTYPES[precision])
        if layout.tp > 1:
            # Imported where it is used: torch's tensor parallelism takes a second.
            from shardline.components.training.tensor import share_weights

            if not isinstance(stage, Transformer):
                raise UserError(
                    f"tp does not know how to share the weights of {named}",
                    where=MODEL_KEY,
                    hint="use dp_shard, cp or pp",
                )
            share_weights(stage, mesh["tp"])
        if precision == "float8":
            float8.use_float8(layers_of(stage))
        if compiled:
            for layer in layers_of(stage):
                layer.compile()
        if layout.dp * layout.cp > 1 or precision in _MIXED:
            data_mesh = mesh["dp_replicate", "dp_shard_cp"] if layout.dp_replicate > 1 else mesh["dp_shard_cp"]
            _shard(stage, data_mesh, layout, precision)
        stage.to_empty(device=device)
        initialise(stage, seed=seed)
        stages[index] = stage
    return Parts(
        stages=stages,
        shape=shape,
        layout=layout,
        place=place,
        pp_group=groups.get_group("pp"),
        dp_group=groups.get_group("dp"),
        tp_group=groups.get_group("tp"),
        device=device,
    )


def layers_of(stage: nn.Module) -> Iterable[nn.Module]:
    """The layers of a stage of a `classes.Model`."""
    layers: Any = stage.layers
    return cast("nn.ModuleDict", layers).values()


def _check_compiler() -> None:
    """Raises EnvironmentLacking when torch.compile would not find the C++ compiler that it needs on any device."""
    if not (os.environ.get("CXX") or any(shutil.which(name) for name in ("g++", "clang++"))):
        raise EnvironmentLacking(
            "torch.compile needs a C++ compiler, and there is none",
            where="training.compile",
            hint="install g++ or set CXX, or set it to false",
        )


def _shard(stage: nn.Module, mesh: DeviceMesh, layout: Layout, precision: str) -> None:
    policy = (
        MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        if precision in _MIXED
        else MixedPrecisionPolicy()
    )
    reshard = layout.reshards
    for layer in layers_of(stage):
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    # The root too: the pipeline's runtime asks the stage's module itself whether it is sharded.
    fully_shard(stage, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    for module in stage.modules():
        if isinstance(module, FSDPModule):
            # Losses are sums over a token count that is known before the step, so gradients are summed and never
            # divided. The factor 1 alone makes FSDP ask for a scaled sum, which gloo does not have.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
