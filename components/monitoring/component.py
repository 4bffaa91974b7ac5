"""The pipeline component that writes the report, and with it ends the run."""

from kfp import dsl


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def report(config: dsl.Input[dsl.Artifact], metrics: dsl.Input[dsl.Metrics], page: dsl.Output[dsl.HTML]) -> None:
    """Write the run's report and mark the run as done.

    Args:
        config: The resolved run config.
        metrics: The evaluation's result.
        page: The report.
    """
    from shardline.components.common import completion, task

    with task.running():
        from shardline.components.monitoring import report

        run_config = task.read_config(config)
        report.run(run_config)
        task.copy_report(page, run_config, "report.html")
        completion.finish(run_config)
