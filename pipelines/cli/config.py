"""`shardline config`: the run config itself."""

from __future__ import annotations

import typer

from shardline.pipelines.cli.options import AsJson, ConfigPath, Overrides, Root, read_config
from shardline.pipelines.cli.output import note, print_json

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
    """Check a config: exits with 2 and one message for each thing that is wrong.

    It also says what `run` would refuse, where the run has begun already, and notes paths at which nothing is.
    """
    from shardline.components.common.errors import ConfigError, UserError

    try:
        run, notes = _checked(config, overrides, root)
    except UserError as error:
        if not as_json:
            raise
        print_json({"valid": False, "problems": error.problems if isinstance(error, ConfigError) else [str(error)]})
        raise typer.Exit(error.exit_code) from None
    for text in notes:
        note(f"note: {text}")
    print_json({"valid": True, "run": run, "notes": notes}) if as_json else print(f"{config}: valid")


def _checked(config: str, overrides: list[str] | None, root: str | None) -> tuple[str, list[str]]:
    """The run's name, and what its owner should know; raises UserError for what `run` would refuse at once."""
    loaded = read_config(config, overrides=overrides, root=root)

    from shardline.components.common.config.paths import missing_inputs
    from shardline.components.common.runfolder import as_adopted, run_storage

    as_adopted(run_storage(loaded.config), loaded.config, sources=loaded.sources)
    notes = [f"{key} = {path}: nothing is there" for key, path in missing_inputs(loaded.config).items()]
    return loaded.config.run, notes
