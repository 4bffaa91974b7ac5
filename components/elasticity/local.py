"""The agent for a run on this machine, as its config asks for. Called by the command line and the pipeline's tasks."""

from __future__ import annotations

from shardline.components.common.config import RunConfig
from shardline.components.common.machine import processes
from shardline.components.elasticity.torch_agent import TorchElasticAgent


def local_agent(config: RunConfig) -> TorchElasticAgent:
    return TorchElasticAgent(
        processes=processes(config), max_restarts=config.elastic.max_restarts, timeout=config.elastic.timeout
    )
