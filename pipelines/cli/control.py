"""`shardline stop` and `shardline profile`: what can be asked of a run that is at work."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from shardline.pipelines.cli.options import Root, Run, found_run
from shardline.pipelines.cli.output import note


def stop(
    run: Run,
    root: Root = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Return when it has ended.")] = True,
) -> None:
    """Save a run that is training, and end it.

    The same command that began it goes on from there.
    """
    from shardline.components.common.control import ask
    from shardline.components.common.owner import owner

    folder = found_run(run, root)
    ask(folder, "stop")
    note("asked: it saves and ends after the optimizer step that it is in")
    while wait and (holder := owner(folder)) is not None and holder["alive"]:
        time.sleep(0.5)


def profile(
    run: Run,
    steps: Annotated[int, typer.Option(min=1, max=1000, help="Optimizer steps to trace.")] = 3,
    ranks: Annotated[str, typer.Option(help="The ranks that write a trace each, such as 0,1.")] = "0",
    root: Root = None,
) -> None:
    """Trace the next optimizer steps of a run that is training.

    The traces are in `profiles/` of the run folder; an event says when they are there.
    """
    from shardline.components.common.control import ask
    from shardline.components.common.errors import UserError

    try:
        wanted = sorted({int(rank) for rank in ranks.split(",")})
    except ValueError:
        raise UserError(
            f"{ranks!r} is not a list of ranks", where="--ranks", hint="give numbers, such as 0,1"
        ) from None
    folder = found_run(run, root)
    ask(folder, "profile", steps=steps, ranks=wanted)
    note(f"asked: the traces will be in {folder.url_of('profiles')}")
