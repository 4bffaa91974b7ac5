"""`shardline nodes`: the nodes that all runs of a storage root do without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shardline.pipelines.cli.options import AsJson, Root
from shardline.pipelines.cli.output import note, print_json, print_table

if TYPE_CHECKING:
    from shardline.components.elasticity.budget.nodes import BadNodes

app = typer.Typer(
    no_args_is_help=True, help="List, set aside and take in again nodes that runs do without.", rich_markup_mode=None
)

Node = Annotated[
    str, typer.Argument(metavar="NODE", help="A node's name in Kubernetes, or a machine's.", show_default=False)
]


@app.command("list")
def list_nodes(root: Root = None, as_json: AsJson = False) -> None:
    """Show the nodes that are set aside, since when and why."""
    from dataclasses import asdict

    found = _nodes(root).all()
    if as_json:
        print_json([asdict(each) for each in found])
        return
    print_table([(each.name, f"since {each.since}: {each.reason}{_by(each.run)}") for each in found])
    if not found:
        note("no node is set aside")


@app.command("set-aside")
def set_aside(
    node: Node,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="What is wrong with it.")],
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Do without a node, in all runs from their next generation on.

    Where too few others are there it still takes part. Called again, the first reason stays.
    """
    nodes = _nodes(root)
    made = nodes.set_aside(node, reason=reason)
    if as_json:
        print_json({"name": node, "set_aside": made})
    else:
        note(f"node {node} is set aside" if made else f"node {node} was set aside already")


@app.command()
def clear(node: Node, root: Root = None, as_json: AsJson = False) -> None:
    """Take a node in again: what was before does not speak against it."""
    cleared = _nodes(root).clear(node)
    if as_json:
        print_json({"name": node, "cleared": cleared})
    else:
        note(f"node {node} is taken in again" if cleared else f"node {node} was not set aside")


def _by(run: str) -> str:
    return f" (run {run.rpartition('/')[2]})" if run else ""


def _nodes(root: str | None) -> BadNodes:
    """Raises UserError when nobody says which storage root is meant."""
    import os

    from shardline.components.common.config.load import ROOT_VARIABLE
    from shardline.components.common.errors import UserError
    from shardline.components.common.storage import Storage
    from shardline.components.elasticity.budget.nodes import BadNodes

    url = root or os.environ.get(ROOT_VARIABLE)
    if url is None:
        raise UserError(
            "is needed: the nodes that are set aside stand in the storage root of the runs",
            where="--root",
            hint=f"give the storage of your config, or set {ROOT_VARIABLE}",
        )
    return BadNodes(Storage(url))
