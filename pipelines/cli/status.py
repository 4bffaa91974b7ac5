"""`shardline status`: how far a run is."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from shardline.pipelines.cli.options import AsJson, Root
from shardline.pipelines.cli.output import print_json, print_table


def status(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's folder, or its name below the storage root.")],
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Say how far a run is and what it has produced."""
    from shardline.components.common.config.load import ROOT_VARIABLE
    from shardline.components.common.runfolder import find_run
    from shardline.pipelines.cli.typed import program
    from shardline.pipelines.summary import collect, table

    summary = collect(find_run(run, root=root or os.environ.get(ROOT_VARIABLE)))
    print_json(summary) if as_json else print_table(table(summary, command=program()))
