"""`shardline shard`: the sharding step alone."""

from __future__ import annotations

from shardline.pipelines.cli.options import AsJson, ConfigPath, Overrides, Root, read_config
from shardline.pipelines.cli.output import print_json, print_table


def shard(config: ConfigPath, overrides: Overrides = None, root: Root = None, as_json: AsJson = False) -> None:
    """Turn the corpus into tokenised Parquet shards and a manifest."""
    loaded = read_config(config, overrides=overrides, root=root)

    from shardline.components.sharding import step
    from shardline.pipelines.cli.stepping import run_step
    from shardline.pipelines.summary import plain_rows

    result = run_step("shard", loaded, lambda: step.run(loaded.config, sources=loaded.sources))
    print_json(result) if as_json else print_table(plain_rows(result))
