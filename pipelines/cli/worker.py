"""`shardline worker`: one agent of a training group, on each machine or in each pod."""

from __future__ import annotations

import os
import re
from typing import Annotated

import typer

from shardline.components.common.processes import PARENT_VARIABLE, die_with_parent
from shardline.pipelines.cli.options import ConfigPath, Overrides, Root, read_config


def worker(
    config: ConfigPath,
    agents: Annotated[
        str, typer.Option("--agents", metavar="MIN:MAX", help="How many agents train together; the others wait.")
    ] = "1",
    processes: Annotated[
        int | None, typer.Option("--processes", min=1, help="Workers of this agent; resources.processes unless given.")
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", metavar="NAME", help="A name for this start of the job, the same for all.")
    ] = None,
    host: Annotated[
        str | None, typer.Option("--host", metavar="ADDRESS", help="Where the other agents reach this machine.")
    ] = None,
    node: Annotated[
        str | None,
        typer.Option("--node", metavar="NAME", help="What this machine is called; its hostname, or a pod's node."),
    ] = None,
    overrides: Overrides = None,
    root: Root = None,
) -> None:
    """Train together with the same command on other machines.

    Start it once on each, with the same CONFIG and --group. Agents may come, go and be killed: training goes on with
    those that are there, from the newest checkpoint. It ends on all of them when the last step is done.

    In a pod of a job that `shardline render` made, CONFIG is all it needs.
    """
    least, most = _bounds(agents)
    if PARENT_VARIABLE in os.environ:
        die_with_parent()
    loaded = read_config(config, overrides=overrides, root=root)

    from shardline.components.common.errors import UserError
    from shardline.components.elasticity.budget.nodes import check_name
    from shardline.components.elasticity.pod import in_cluster
    from shardline.pipelines import worker as places

    if node is not None:
        check_name(node)
    if group is not None:
        place = places.on_machine(
            loaded.config, least=least, most=most, count=processes, group=group, host=host, node=node
        )
    elif in_cluster():
        place = places.in_pod(loaded.config, node=node)
    else:
        raise UserError(
            "is needed: a name for this start of the job, the same on every machine and another one next time",
            where="--group",
            hint="for example the number of the job in your scheduler",
        )
    places.join(loaded, place)


def _bounds(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)(?::(\d+))?", text)
    least, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= least <= most:
        raise typer.BadParameter(f"{text!r} is not MIN:MAX with 1 <= MIN <= MAX", param_hint="--agents")
    return least, most
