"""`shardline submit`, `submitted` and `cancel`: single runs in Kubeflow.

A run in Kubeflow has a command of its own beside `status`: that one looks at a run folder, and needs no Kubeflow; a run
here may have no folder yet.
"""

from __future__ import annotations

from typing import Annotated

import typer

from shardline.pipelines.cli.kubeflow import RunId, Wait, Where, connect, kubeflow_section, options, show_run
from shardline.pipelines.cli.options import AsJson, ConfigPath, Overrides, Root
from shardline.pipelines.cli.output import note, print_json, print_table


def submit(
    config: ConfigPath,
    wait: Wait = False,
    overrides: Overrides = None,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Start a run in Kubeflow.

    The pipeline is compiled and uploaded, as a version that its content names. With --wait the exit code is that of
    what ended the run; Ctrl-C then ends the waiting alone.
    """
    from shardline.components.common.config import load
    from shardline.pipelines.package import compile_pipeline

    loaded = load(config, overrides=overrides or (), root=root)
    package = compile_pipeline(loaded)

    from shardline.pipelines.kubeflow.follow import follow
    from shardline.pipelines.kubeflow.submit import submit as start

    client = connect(loaded.config.kubeflow)
    run = start(loaded, client, package=package)
    note(f"submitted: {run.id}")
    if wait:
        run = follow(client, run, tell=note, options=options(config, overrides))
    show_run(client, run, as_json=as_json, followed=wait)


def submitted(
    run_id: Annotated[
        str | None, typer.Argument(metavar="[RUN-ID]", help="The run's id in Kubeflow.", show_default=False)
    ] = None,
    wait: Wait = False,
    config: Where = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Show a run in Kubeflow, or the newest ones of the experiment.

    What a run has produced is in its folder: `shardline status` shows that.
    """
    from shardline.components.common.errors import UserError

    kubeflow = kubeflow_section(config, overrides)
    if wait and run_id is None:
        raise UserError("needs to know which run", where="--wait", hint="give the run's id")
    client = connect(kubeflow)
    if run_id is not None:
        from shardline.pipelines.kubeflow.follow import follow

        run = client.run(run_id)
        if wait:
            run = follow(client, run, tell=note, options=options(config, overrides))
        show_run(client, run, as_json=as_json, followed=wait)
        return

    from shardline.pipelines.kubeflow.schedules import experiment_of

    runs = client.runs(experiment_of(client, kubeflow))
    if as_json:
        print_json([run.to_json() for run in runs])
    else:
        print_table([(run.id, f"{run.state.lower():<10} {run.name}") for run in runs])


def cancel(run_id: RunId, config: Where = None, overrides: Overrides = None) -> None:
    """End a run in Kubeflow.

    What it has done stays: submitted again, the same config goes on from there.
    """
    client = connect(kubeflow_section(config, overrides))
    run = client.run(run_id)
    if run.ended:
        note(f"it has ended already: {run.state.lower()}")
        return
    client.cancel(run_id)
    note("asked: Kubeflow ends its pods in a few seconds, and then shows it as failed")
