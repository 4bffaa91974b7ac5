"""The training pipeline: one definition, run on this machine by `shardline run` and compiled by `shardline compile`.

    shard -> plan -> train -> evaluate -> report

One config artifact travels from task to task. A few fat steps, as each costs a cluster a quarter of a minute. KFP's
cache is off throughout: it looks at parameters only, and would miss a corpus that changed or a shard that is gone; the
steps themselves know what is done and skip it.

No postponed annotations here: KFP reads the types of a pipeline's parameters from the function itself.
"""

from typing import Any

from kfp import dsl

from shardline.components.evaluation.component import evaluate
from shardline.components.monitoring.component import report
from shardline.components.planning.component import plan
from shardline.components.sharding.component import shard
from shardline.components.training.component import train


def training_pipeline(*, name: str, image: str) -> Any:
    """The pipeline, with its one parameter `config` (the run config as text).

    Args:
        name: the name under which Kubeflow shows it.
        image: the container image of each task; the local runner does not use it.
    """

    @dsl.pipeline(name=name, description="From a raw text corpus to a trained and evaluated language model.")
    def pipeline(config: str) -> None:
        sharded = shard(config=config)
        resolved = sharded.outputs["resolved"]
        planned = plan(config=resolved, dataset=sharded.outputs["dataset"])
        trained = train(config=resolved, layout=planned.outputs["layout"])
        evaluated = evaluate(config=resolved, checkpoint=trained.outputs["checkpoint"])
        reported = report(config=resolved, metrics=evaluated.outputs["metrics"])
        for task in (sharded, planned, trained, evaluated, reported):
            task.set_container_image(image).set_caching_options(enable_caching=False)

    return pipeline
