"""The pipeline components of the sharding step and of one of its parts: a few lines each that call them.

No postponed annotations here: KFP reads the types of a component's parameters from the function itself.
"""

from kfp import dsl


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def shard_part(config: str, scheduled: bool, due: str, part: int, parts: int) -> int:
    """Do one of several parts of the sharding; `shard` makes a data set of all.

    Args:
        config: The run config, as JSON or YAML text.
        scheduled: Whether a schedule started this, so that it is a run of its own.
        due: The time for which it was scheduled.
        part: Which part, from 0.
        parts: How many there are.

    Returns:
        The part that is done.
    """
    from shardline.components.common import task

    with task.running():
        from shardline.components.sharding import parts as sharding

        sharding.run(task.parse_config(config, scheduled=scheduled, due=due), part, parts)
    return part


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def shard(
    config: str,
    scheduled: bool,
    due: str,
    parts: list[int],
    resolved: dsl.Output[dsl.Artifact],
    dataset: dsl.Output[dsl.Dataset],
) -> None:
    """Turn the corpus into tokenised shards.

    Args:
        config: The run config, as JSON or YAML text.
        scheduled: Whether a schedule started this, so that it is a run of its own.
        due: The time for which it was scheduled.
        parts: Those that have been done, of which a data set is made; none: it is made here.
        resolved: The run config with every key, for the steps that follow.
        dataset: Where the data set lies, and its totals.
    """
    from shardline.components.common import task

    with task.running():
        from shardline.components.sharding import step

        run_config = task.parse_config(config, scheduled=scheduled, due=due)
        task.publish(dataset, step.run(run_config, merging=bool(parts)))
        task.write_config(resolved, run_config)
