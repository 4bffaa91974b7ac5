"""The training pipeline: one definition, run on this machine by `shardline run` and compiled by `shardline compile`.

    shard -> plan -> train -> evaluate, and report when they have ended, however they did

One config artifact travels from task to task. A few fat steps, as each costs a cluster a quarter of a minute. KFP's
cache is off throughout: it looks at parameters only, and would miss a corpus that changed or a shard that is gone; the
steps themselves know what is done, by the content of the data, and skip it. The gate's verdict is an output and no
branch: no step depends on it.

No postponed annotations here: KFP reads the types of a pipeline's parameters from the function itself.
"""

from typing import Any

from kfp import dsl

from shardline.components.evaluation.component import evaluate
from shardline.components.monitoring.component import report
from shardline.components.planning.component import plan
from shardline.components.sharding.component import shard
from shardline.components.training.component import train
from shardline.pipelines import podsettings
from shardline.pipelines.podsettings import PodSettings

#: The group of tasks that the report waits for.
STEPS_GROUP = "steps"


def training_pipeline(*, name: str, pods: PodSettings | None) -> Any:
    """The pipeline, with its parameters `config` (the run config as text) and `scheduled`.

    Args:
        name: the name under which Kubeflow shows it.
        pods: what each task's pod is like; None on this machine, where there are none.
    """

    @dsl.pipeline(name=name, description="From a raw text corpus to a trained and evaluated language model.")
    def pipeline(config: str, scheduled: bool = False) -> None:
        # KFP's local runner does not know this placeholder, and there are no schedules.
        due = "" if pods is None else dsl.PIPELINE_JOB_SCHEDULE_TIME_UTC_PLACEHOLDER
        run = {"config": config, "scheduled": scheduled, "due": due}
        reported = report(**run)
        with dsl.ExitHandler(reported, name=STEPS_GROUP):
            sharded = shard(**run)
            resolved = sharded.outputs["resolved"]
            planned = plan(config=resolved, dataset=sharded.outputs["dataset"])
            trained = train(config=resolved, layout=planned.outputs["layout"])
            evaluated = evaluate(config=resolved, checkpoint=trained.outputs["checkpoint"])
        for step, task in (
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
