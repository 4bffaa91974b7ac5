"""The pipeline component of the sharding step: a few lines that call it."""

from kfp import dsl


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def shard(
    config: str, scheduled: bool, due: str, resolved: dsl.Output[dsl.Artifact], dataset: dsl.Output[dsl.Dataset]
) -> None:
    """Turn the corpus into tokenised shards.

    Args:
        config: The run config, as JSON or YAML text.
        scheduled: Whether a schedule started this, so that it is a run of its own.
        due: The time for which it was scheduled.
        resolved: The run config with every key, for the steps that follow.
        dataset: Where the data set lies, and its totals.
    """
    from shardline.components.common import task

    with task.running():
        from shardline.components.sharding import step

        run_config = task.parse_config(config, scheduled=scheduled, due=due)
        task.publish(dataset, step.run(run_config))
        task.write_config(resolved, run_config)
