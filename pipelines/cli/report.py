"""`shardline report`: the report alone, of a run at any stage."""

from __future__ import annotations

from shardline.pipelines.cli.options import AsJson, ConfigPath, Overrides, Root, read_config
from shardline.pipelines.cli.output import print_json


def report(config: ConfigPath, overrides: Overrides = None, root: Root = None, as_json: AsJson = False) -> None:
    """Write the run's report.html and print its URL.

    It shows what the run has so far, at any stage.
    """
    loaded = read_config(config, overrides=overrides, root=root)

    from shardline.components.monitoring import report as report_step
    from shardline.pipelines.cli.stepping import run_step

    url = run_step("report", loaded, lambda: report_step.run(loaded.config, sources=loaded.sources))
    print_json({"report": url}) if as_json else print(url)
