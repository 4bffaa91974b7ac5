"""The pipeline component of the training step: a few lines that call it."""

from kfp import dsl


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def train(
    config: dsl.Input[dsl.Artifact], layout: dsl.Input[dsl.Artifact], checkpoint: dsl.Output[dsl.Artifact]
) -> None:
    """Train the model to the last optimizer step, going on from the newest checkpoint.

    Args:
        config: The resolved run config.
        layout: The planned layout.
        checkpoint: Where the last checkpoint lies.
    """
    from shardline.components.common import task

    with task.running():
        from shardline.components.elasticity import cluster
        from shardline.components.training import step

        loaded = task.load_config(config)
        if cluster.is_here(loaded):
            cluster.train(loaded)
            task.publish(checkpoint, step.outcome(loaded.config))
        else:
            from shardline.components.elasticity.local import local_agent
            from shardline.components.monitoring.server import serving_local

            with serving_local(loaded.config):
                task.publish(checkpoint, step.run(loaded.config, agent=local_agent(loaded.config)))
