"""The pipeline component of the sharding step: a few lines that call it."""

from kfp import dsl


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def shard(config: str, resolved: dsl.Output[dsl.Artifact], dataset: dsl.Output[dsl.Dataset]) -> None:
    """Turn the corpus into tokenised shards.

    Args:
        config: The run config, as JSON or YAML text.
        resolved: The run config with every key, for the steps that follow.
        dataset: Where the data set lies, and its totals.
    """
    from shardline.components.common import task

    with task.running():
        from shardline.components.sharding import step

        run_config = task.parse_config(config)
        task.publish(dataset, step.run(run_config))
        task.write_config(resolved, run_config)
