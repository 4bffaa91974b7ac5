"""`shardline move`: a job that trains goes to other nodes of its cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from shardline.pipelines.cli.options import AsJson, ConfigPath, Overrides, Root, read_config, seconds_of
from shardline.pipelines.cli.output import note, print_json, print_table


def move(
    config: ConfigPath,
    to: Annotated[
        list[str] | None,
        typer.Option("--to", metavar="LABEL=VALUE", help="Only to nodes with this label. Repeatable."),
    ] = None,
    off: Annotated[
        list[str] | None, typer.Option("--off", metavar="NODE", help="Away from this node. Repeatable.")
    ] = None,
    patience: Annotated[
        str, typer.Option("--patience", metavar="TIME", help="How long a pod may take to be back: 10m, 1h.")
    ] = "10m",
    overrides: Overrides = None,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Move a run that trains to other nodes of its cluster.

    It trains on, and its pods go one by one: new ones are put on the nodes that --to and --off leave, and each that is
    elsewhere saves, ends and comes back there. Nothing is lost or repeated. Called again after an error, it goes on
    where it was.
    """
    labels = {}
    for each in to or ():
        name, equals, value = each.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{each!r} is not LABEL=VALUE", param_hint="--to")
        labels[name] = value
    if not labels and not off:
        raise typer.BadParameter("say where: --to LABEL=VALUE, --off NODE, or both", param_hint="--to")
    seconds = seconds_of(patience, "--patience")
    loaded = read_config(config, overrides=overrides, root=root)

    from dataclasses import asdict

    from shardline.components.common.kubernetes.client import Client
    from shardline.components.elasticity.moving import Destination, Mover

    client = Client.connect(namespace=loaded.config.kubernetes.namespace)
    mover = Mover(client, name=loaded.config.run, tell=note, patience=seconds)
    moved = mover.move(Destination(labels=labels, off=off or ()))
    if as_json:
        print_json([asdict(each) for each in moved])
        return
    print_table([(each.pod, f"from {each.origin} to {each.node} in {each.seconds:.0f} s") for each in moved])
    if not moved:
        note("every pod is there already")
