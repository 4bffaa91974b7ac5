"""The pipeline component of the evaluation step: a few lines that call it."""

from kfp import dsl


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def evaluate(
    config: dsl.Input[dsl.Artifact],
    checkpoint: dsl.Input[dsl.Artifact],
    metrics: dsl.Output[dsl.Metrics],
    model: dsl.Output[dsl.Model],
    verdict: dsl.OutputPath(str),  # type: ignore[valid-type]
) -> None:
    """Evaluate the last checkpoint on held-out text and export the model.

    Args:
        config: The resolved run config.
        checkpoint: The checkpoint to evaluate.
        metrics: Loss, perplexity and bits per byte.
        model: Where the exported Hugging Face folder lies.
        verdict: What the gate says: "passed" or "refused".
    """
    from pathlib import Path

    from shardline.components.common import task

    with task.running():
        from shardline.components.common.runfolder import run_storage
        from shardline.components.elasticity.local import local_agent
        from shardline.components.evaluation import step

        run_config = task.read_config(config)
        result = step.run(run_config, agent=local_agent(run_config))
        measures = {name: result[name] for name in ("loss", "perplexity", "bits_per_byte")}
        for name, value in task.finite_numbers(measures).items():
            metrics.log_metric(name, value)
        task.publish(model, {"url": run_storage(run_config).url_of("model")})
        Path(verdict).write_text("passed" if result["gate"]["passed"] else "refused", encoding="utf-8")
