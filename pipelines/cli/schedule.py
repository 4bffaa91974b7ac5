"""`shardline schedule`: training that recurs, as recurring runs in Kubeflow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shardline.pipelines.cli.kubeflow import Where, connect, kubeflow_section
from shardline.pipelines.cli.options import AsJson, ConfigPath, Overrides, Root
from shardline.pipelines.cli.output import note, print_json, print_table

if TYPE_CHECKING:
    from shardline.pipelines.kubeflow.client import Client
    from shardline.pipelines.kubeflow.cron import Cron
    from shardline.pipelines.kubeflow.records import Schedule

app = typer.Typer(no_args_is_help=True, help="Train on a schedule in Kubeflow.", rich_markup_mode=None)

Name = Annotated[
    str, typer.Argument(metavar="SCHEDULE", help="The schedule's name, or its id in Kubeflow.", show_default=False)
]
_NEXT = 3


@app.command()
def create(
    config: ConfigPath,
    cron: Annotated[
        str,
        typer.Option(
            metavar="'M H DOM MON DOW'",
            help="When: minute, hour, day of the month, month, day of the week, in UTC.",
            show_default=False,
        ),
    ],
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="What to call it; the run's name unless given.")
    ] = None,
    overrides: Overrides = None,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Train at the times of --cron.

    Each firing is a run of its own, named RUN-YYYYMMDD-HHMM. One runs at a time, and times that pass meanwhile are left
    out. Times are UTC.
    """
    from shardline.pipelines.kubeflow.cron import parse

    times = parse(cron)

    from shardline.components.common.config import load
    from shardline.pipelines.kubeflow import schedules
    from shardline.pipelines.package import compile_pipeline

    loaded = load(config, overrides=overrides or (), root=root)
    name = loaded.config.run if name is None else name
    schedules.check_names(loaded.config, name=name)
    package = compile_pipeline(loaded)
    client = connect(loaded.config.kubeflow)
    made = schedules.create(loaded, client, name=name, cron=times, package=package)
    if as_json:
        print_json({**made.to_json(), "next": _next(times)})
        return
    rows = [("schedule", made.name), ("id", made.id), ("Kubeflow's cron", str(made.cron))]
    print_table(rows + [("next", text) for text in _next(times)])


@app.command("list")
def list_schedules(config: Where = None, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Show the schedules of the experiment."""
    kubeflow = kubeflow_section(config, overrides)

    from shardline.pipelines.kubeflow.schedules import listing

    found = listing(connect(kubeflow), kubeflow)
    if as_json:
        print_json([schedule.to_json() for schedule in found])
    else:
        state = {True: "at work", False: "paused"}
        print_table([(each.name, f"{state[each.enabled]:<8} {each.cron or '-':<20} {each.id}") for each in found])


@app.command()
def pause(schedule: Name, config: Where = None, overrides: Overrides = None) -> None:
    """Start no further runs; one that is at work goes on."""
    client, found = _found(schedule, config, overrides)
    client.disable(found)
    note(f"{found.name} is paused")


@app.command()
def resume(schedule: Name, config: Where = None, overrides: Overrides = None) -> None:
    """Start runs again; what was due meanwhile is left out."""
    client, found = _found(schedule, config, overrides)
    client.enable(found)
    note(f"{found.name} is at work")


@app.command()
def delete(schedule: Name, config: Where = None, overrides: Overrides = None) -> None:
    """Remove a schedule; its runs stay."""
    client, found = _found(schedule, config, overrides)
    client.delete(found)
    note(f"{found.name} is deleted; its runs stay")


@app.command()
def trigger(schedule: Name, config: Where = None, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Start a run of a schedule now."""
    from shardline.pipelines.cli.kubeflow import show_run
    from shardline.pipelines.kubeflow import schedules

    client, found = _found(schedule, config, overrides)
    show_run(client, schedules.trigger(client, found), as_json=as_json, followed=False)


def _found(schedule: str, config: str | None, overrides: list[str] | None) -> tuple[Client, Schedule]:
    from shardline.pipelines.kubeflow.schedules import find

    kubeflow = kubeflow_section(config, overrides)
    client = connect(kubeflow)
    return client, find(client, kubeflow, schedule)


def _next(cron: Cron) -> list[str]:
    from datetime import UTC, datetime

    return [f"{moment:%Y-%m-%d %H:%M UTC}" for moment in cron.times(after=datetime.now(UTC), count=_NEXT)]
