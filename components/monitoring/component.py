"""The pipeline component that writes the report, and with it ends the run."""

from kfp import dsl


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def report(config: str, scheduled: bool, due: str, page: dsl.Output[dsl.HTML]) -> None:
    """Write the run's report, however far it came, and mark the run as done where each step is.

    It runs when the other steps have ended, well or not. What it knows it reads from the run folder: of a step that
    failed it gets no output, and the state that Kubeflow tells is wrong for a step that was tried twice.

    Args:
        config: The run config, as JSON or YAML text.
        scheduled: Whether a schedule started this, so that it is a run of its own.
        due: The time for which it was scheduled.
        page: The report.
    """
    from shardline.components.common import completion, task

    with task.running():
        from shardline.components.monitoring import report

        run_config = task.adopted_config(task.parse_config(config, scheduled=scheduled, due=due))
        if run_config is None:
            task.write_text(page, "No run began, so there is nothing to report.")
            return
        report.run(run_config)
        task.copy_report(page, run_config, "report.html")
        if completion.steps_done(run_config):
            completion.finish(run_config)
