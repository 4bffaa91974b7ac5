"""`shardline train`: the training step alone."""

from __future__ import annotations

from shardline.pipelines.cli.options import AsJson, ConfigPath, Overrides, Root, read_config
from shardline.pipelines.cli.output import print_json, print_table


def train(config: ConfigPath, overrides: Overrides = None, root: Root = None, as_json: AsJson = False) -> None:
    """Train to training.steps, going on from the newest checkpoint.

    It starts as many processes as the layout asks for (training.layout, resources.processes).
    """
    loaded = read_config(config, overrides=overrides, root=root)

    from shardline.components.elasticity.local import local_agent
    from shardline.components.monitoring.server import serving_local
    from shardline.components.training import step
    from shardline.pipelines import results
    from shardline.pipelines.cli.stepping import run_step

    with serving_local(loaded.config):
        agent = local_agent(loaded.config)
        result = run_step("train", loaded, lambda: step.run(loaded.config, agent=agent, sources=loaded.sources))
    print_json(result) if as_json else print_table(results.training(result))
