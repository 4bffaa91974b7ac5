"""A model cut up by a layout: this rank's stages, sharded by FSDP2, and the process groups it works in.

Called by `session`. The order is: build the rank's stages on the meta device, shard them, allocate, fill; no rank ever
holds the whole model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from shardline.components.common.config.presets import ModelShape
from shardline.components.planning.layout import Layout, split_layers
from shardline.components.training.initial import initialise
from shardline.components.training.model import Transformer

#: What parameters are kept in, by `training.precision`. bf16 keeps fp32 and computes in bf16.
PARAMETER_DTYPES = {"fp32": torch.float32, "bf16": torch.float32, "fp64": torch.float64}


@dataclass(frozen=True, kw_only=True)
class Parts:
    """This rank's share of a model of `shape`.

    Attributes:
        stages: its stages, by their number, in the order they are run.
        pp_group, dp_group: the ranks that hold the other stages of this replica, and those that hold the same stages.
    """

    stages: dict[int, Transformer]
    shape: ModelShape
    layout: Layout
    mesh: DeviceMesh
    pp_group: dist.ProcessGroup
    dp_group: dist.ProcessGroup
    pp_rank: int
    dp_rank: int
    device: torch.device

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        for stage in self.stages.values():
            yield from stage.named_parameters()

    @property
    def has_last_stage(self) -> bool:
        return self.layout.stages - 1 in self.stages


def lay_out(shape: ModelShape, *, layout: Layout, rank: int, device: torch.device, precision: str, seed: int) -> Parts:
    """Build this rank's part of the model, with its initial values.

    The default process group must be there. All ranks call it together.
    """
    mesh = init_device_mesh(
        device.type,
        (layout.pp, layout.dp_replicate, layout.dp_shard),
        mesh_dim_names=("pp", "dp_replicate", "dp_shard"),
    )
    data_mesh = mesh["dp_replicate", "dp_shard"]
    pp_rank, dp_rank = layout.place(rank)
    layers = split_layers(shape.layers, layout.stages)
    stages: dict[int, Transformer] = {}
    for index in layout.stages_of(pp_rank):
        with torch.device("meta"):
            stage = Transformer(shape, layers=layers[index]).to(PARAMETER_DTYPES[precision])
        if layout.dp > 1 or precision == "bf16":
            _shard(stage, data_mesh if layout.dp_replicate > 1 else mesh["dp_shard"], layout, precision)
        stage.to_empty(device=device)
        initialise(stage, shape=shape, seed=seed)
        stages[index] = stage
    return Parts(
        stages=stages,
        shape=shape,
        layout=layout,
        mesh=mesh,
        pp_group=mesh.get_group("pp"),
        dp_group=data_mesh._flatten("dp").get_group(),
        pp_rank=pp_rank,
        dp_rank=dp_rank,
        device=device,
    )


def _shard(stage: Transformer, mesh: DeviceMesh, layout: Layout, precision: str) -> None:
    policy = (
        MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        if precision == "bf16"
        else MixedPrecisionPolicy()
    )
    # In a pipeline every microbatch passes each stage: gathering the parameters anew for each would dominate.
    reshard = layout.pp == 1
    for layer in stage.layers.values():
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    # The root too: the pipeline's runtime asks the stage's module itself whether it is sharded.
    fully_shard(stage, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    for module in stage.modules():
        if isinstance(module, FSDPModule):
            # Losses are sums over a token count that is known before the step, so gradients are summed and never
            # divided. The factor 1 alone makes FSDP ask for a scaled sum, which gloo does not have.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
