"""The training pipeline: one definition, run on this machine by `shardline run` and compiled by `shardline compile`.

    shard -> plan -> train -> evaluate, and report when they have ended, however they did

One config artifact travels from task to task. A few fat steps, as each costs a cluster a quarter of a minute. KFP's
cache is off throughout: it looks at parameters only, and would miss a corpus that changed or a shard that is gone; the
steps themselves know what is done, by the content of the data, and skip it. The gate's verdict is an output and no
branch: no step depends on it.

Sharding in parts is a loop over them, a pod each, after which `shard` makes a data set of what they did. A loop costs a
cluster some tens of seconds; a single part has none, and one machine has a pool of processes instead.

No postponed annotations here: KFP reads the types of a pipeline's parameters from the function itself.
"""

from typing import Any

from kfp import dsl

from shardline.components.evaluation.component import evaluate
from shardline.components.monitoring.component import report
from shardline.components.planning.component import plan
from shardline.components.sharding.component import shard, shard_part
from shardline.components.training.component import train
from shardline.pipelines import podsettings
from shardline.pipelines.kubeflow.records import PART_TASK
from shardline.pipelines.podsettings import PodSettings

#: The group of tasks that the report waits for.
STEPS_GROUP = "steps"


def training_pipeline(*, name: str, pods: PodSettings | None, parts: int = 1) -> Any:
    """The pipeline, with its parameters `config` (the run config as text) and `scheduled`.

    Args:
        name: the name under which Kubeflow shows it.
        pods: what each task's pod is like; None on this machine, where there are none.
        parts: into how many the sharding is divided, each in a pod of its own.
    """

    @dsl.pipeline(name=name, description="From a raw text corpus to a trained and evaluated language model.")
    def pipeline(config: str, scheduled: bool = False) -> None:
        # KFP's local runner does not know this placeholder, and there are no schedules.
        due = "" if pods is None else dsl.PIPELINE_JOB_SCHEDULE_TIME_UTC_PLACEHOLDER
        run = {"config": config, "scheduled": scheduled, "due": due}
        reported = report(**run)
        with dsl.ExitHandler(reported, name=STEPS_GROUP):
            *parted, sharded = sharding(run, parts=parts)
            resolved = sharded.outputs["resolved"]
            planned = plan(config=resolved, dataset=sharded.outputs["dataset"])
            trained = train(config=resolved, layout=planned.outputs["layout"])
            evaluated = evaluate(config=resolved, checkpoint=trained.outputs["checkpoint"])
        for step, task in (
            *(("shard", task) for task in parted),
            ("shard", sharded),
            ("plan", planned),
            ("train", trained),
            ("evaluate", evaluated),
            ("report", reported),
        ):
            task.set_caching_options(enable_caching=False)
            if pods is not None:
                podsettings.apply(pods, task=task, step=step)

    return pipeline


def sharding(run: dict[str, Any], *, parts: int) -> list[Any]:
    """The tasks of the sharding, the last of which has the data set; for the body of a pipeline.

    Args:
        run: what every task takes that begins a run.
        parts: into how many it is divided; with one it is a single task.
    """
    if parts == 1:
        return [shard(**run, parts=[])]
    # All at once: each is a pod that waits for room by itself.
    with dsl.ParallelFor(items=list(range(parts)), name=f"{PART_TASK}s") as part:
        done = shard_part(**run, part=part, parts=parts)
    return [done, shard(**run, parts=dsl.Collected(done.output))]
