"""`shardline config`: the run config itself."""

from __future__ import annotations

import typer

from shardline.pipelines.cli.options import AsJson, ConfigPath, Overrides, Root, read_config
from shardline.pipelines.cli.output import print_json

app = typer.Typer(help="Show and check run configs.", no_args_is_help=True)


@app.command()
def schema() -> None:
    """Print the JSON schema of a run config, with which editors complete and check one."""
    from shardline.components.common.config import RunConfig

    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    print_json({**dialect, **RunConfig.model_json_schema()})


@app.command()
def show(config: ConfigPath, overrides: Overrides = None, root: Root = None, as_json: AsJson = False) -> None:
    """Print the config with every key written out."""
    loaded = read_config(config, overrides=overrides, root=root)

    from shardline.components.common.config import dump

    print_json(loaded.config.model_dump(mode="json")) if as_json else print(dump(loaded.config), end="")


@app.command()
def check(config: ConfigPath, overrides: Overrides = None, root: Root = None, as_json: AsJson = False) -> None:
    """Check a config: exits with 2 and one message for each thing that is wrong."""
    run = read_config(config, overrides=overrides, root=root).config.run
    print_json({"valid": True, "run": run}) if as_json else print(f"{config}: valid")
