"""The `shardline` command: the list of commands, and the one place where an error becomes an exit code.

Nothing heavy is imported before a command runs, so that help and completion answer at once.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from shardline.components.common.errors import EXIT_INTERRUPT, ShardlineError, Stopped
from shardline.components.common.processes import raise_on_signals
from shardline.pipelines.cli import (
    checkpoint,
    config,
    control,
    data,
    drill,
    evaluate,
    fork,
    move,
    nodes,
    operator,
    plan,
    render,
    replay,
    report,
    run,
    schedule,
    shard,
    status,
    submit,
    train,
    worker,
)
from shardline.pipelines.cli import compile as compile_command
from shardline.pipelines.cli.output import show_error

app = typer.Typer(
    name="shardline",
    help="From a raw text corpus to a trained and evaluated language model, on this machine or on Kubernetes.",
    epilog="One CONFIG describes a run. `shardline run examples/quickstart.yaml` does all of it on this machine.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(run.run)
app.command("compile")(compile_command.compile_config)
app.command()(render.render)
app.command()(submit.submit)
app.command()(submit.submitted)
app.command()(submit.cancel)
app.command()(shard.shard)
app.command()(plan.plan)
app.command()(train.train)
app.command()(worker.worker)
app.command()(operator.operator)
app.command()(evaluate.evaluate)
app.command()(report.report)
app.command()(status.status)
app.command()(control.stop)
app.command()(control.profile)
app.command()(replay.replay)
app.command()(fork.fork)
app.command()(fork.merge)
app.command()(drill.drill)
app.command()(move.move)
app.add_typer(schedule.app, name="schedule")
app.add_typer(checkpoint.app, name="checkpoint")
app.add_typer(data.app, name="data")
app.add_typer(nodes.app, name="nodes")
app.add_typer(config.app, name="config")


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"shardline {version('shardline')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; a traceback is shown for a bug alone."""
    try:
        raise_on_signals()
        app()
    except (ShardlineError, Stopped) as error:
        sys.exit(show_error(error))
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from shardline.components.common.machine import without_torch

        sys.exit(show_error(without_torch()))
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPT)


if __name__ == "__main__":
    main()
