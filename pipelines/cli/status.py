"""`shardline status`: how far a run is."""

from __future__ import annotations

from shardline.pipelines.cli.options import AsJson, Root, Run, found_run
from shardline.pipelines.cli.output import print_json, print_table


def status(
    run: Run,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Say how far a run is and what it has produced."""
    from shardline.pipelines.cli.typed import program
    from shardline.pipelines.summary import collect, table

    summary = collect(found_run(run, root))
    print_json(summary) if as_json else print_table(table(summary, command=program()))
