"""What the commands for Kubeflow share: the way to its client, and how a run there is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shardline.pipelines.cli.output import print_json, print_table

if TYPE_CHECKING:
    from shardline.components.common.config.kubeflow_schema import Kubeflow
    from shardline.pipelines.kubeflow.client import Client
    from shardline.pipelines.kubeflow.records import KubeflowRun

RunId = Annotated[str, typer.Argument(metavar="RUN-ID", help="The run's id in Kubeflow.", show_default=False)]
Where = Annotated[
    str | None,
    typer.Option(
        "--config",
        "-c",
        metavar="CONFIG",
        help="The run config whose kubeflow section says where Kubeflow is; KF_PIPELINES_ENDPOINT without one.",
    ),
]
Wait = Annotated[bool, typer.Option("--wait", help="Show how far it is until it has ended; exit as it did.")]


def kubeflow_section(config: str | None, overrides: list[str] | None) -> Kubeflow:
    """The `kubeflow` section of `config`, or what holds without one.

    Raises:
        UserError: the file cannot be read, or a key is set in no file.
        ConfigError: a key is wrong.
    """
    from shardline.components.common.config import load
    from shardline.components.common.config.kubeflow_schema import Kubeflow
    from shardline.components.common.errors import UserError

    if config is not None:
        return load(config, overrides=overrides or ()).config.kubeflow
    if overrides:
        raise UserError("changes a config, and none is given", where="--set", hint="give it with --config")
    return Kubeflow()


def connect(kubeflow: Kubeflow) -> Client:
    """The client; raises what `Client` does."""
    from shardline.pipelines.kubeflow.client import Client

    return Client(kubeflow)


def options(config: str | None, overrides: list[str] | None) -> str:
    """What another command is given to find the same Kubeflow, with a space before it."""
    import shlex

    words = ["--config", config] if config is not None else []
    for override in overrides or ():
        words += ["--set", override]
    return f" {shlex.join(words)}" if words else ""


def show_run(client: Client, run: KubeflowRun, *, as_json: bool, followed: bool) -> None:
    """Print `run`, and with `followed` raise unless it ended as it should."""
    from shardline.components.common.errors import UserError
    from shardline.components.common.runfolder import run_storage
    from shardline.pipelines.cli.output import note
    from shardline.pipelines.kubeflow.follow import check_outcome, link

    try:
        folder = run_storage(run.config()).url
    except UserError:
        folder = None
    shown = {**run.to_json(), "folder": folder, "link": link(client, run.id)}
    if as_json:
        print_json(shown)
    else:
        state = "cancelled" if run.canceled and run.state == "FAILED" else run.state.lower()
        rows = [("run", run.name), ("id", run.id), ("state", state), ("folder", folder), ("link", shown["link"])]
        rows += [(f"  {task.name}", task.state.lower()) for task in run.tasks]
        print_table([(name, str(value)) for name, value in rows if value])
    if followed:
        check_outcome(client, run, tell=note)
