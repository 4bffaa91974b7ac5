"""The pipeline component of the planning step: a few lines that call it."""

from kfp import dsl


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def plan(config: dsl.Input[dsl.Artifact], dataset: dsl.Input[dsl.Dataset], layout: dsl.Output[dsl.Artifact]) -> None:
    """Choose the parallel layout and estimate memory and time.

    Args:
        config: The resolved run config.
        dataset: The data set to train on.
        layout: The chosen layout with its reasons.
    """
    from shardline.components.common import task

    with task.running():
        from shardline.components.planning import step

        task.publish(layout, step.run(task.read_config(config)))
