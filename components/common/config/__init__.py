"""The run config: one YAML file, one model, validated once at the edge."""

from shardline.components.common.config.load import Loaded, check_rules, dump, dump_line, load, parse
from shardline.components.common.config.paths import absolute, local_paths, refuse_relative
from shardline.components.common.config.schema import RunConfig

__all__ = [
    "Loaded",
    "RunConfig",
    "absolute",
    "check_rules",
    "dump",
    "dump_line",
    "load",
    "local_paths",
    "parse",
    "refuse_relative",
]
