"""`shardline plan`: what would be chosen, without touching a run."""

from __future__ import annotations

from shardline.pipelines.cli.options import AsJson, ConfigPath, Overrides, Root, read_config
from shardline.pipelines.cli.output import print_json, print_table


def plan(config: ConfigPath, overrides: Overrides = None, root: Root = None, as_json: AsJson = False) -> None:
    """Show the layout that training would take here, and why.

    Nothing is written, so that any layout or number of processes can be asked about.
    """
    loaded = read_config(config, overrides=overrides, root=root)

    from shardline.components.planning import step
    from shardline.pipelines import results

    result = step.plan(loaded.config)
    print_json(result) if as_json else print_table(results.plan(result))
