"""A launcher as a process of its own, started by the tests: `python -m tests.cluster.launching CONFIG WHY`."""

from __future__ import annotations

import os
import sys

from shardline.components.common import config as configs
from shardline.components.common.errors import ShardlineError, Stopped
from shardline.components.common.kubernetes.client import Client
from shardline.components.common.kubernetes.render import render
from shardline.components.common.processes import raise_on_signals
from shardline.components.common.runfolder import run_storage
from shardline.components.elasticity.budget.verdict import Limits
from shardline.components.elasticity.launcher import Launch, launch


def main(path: str, cancelled: str) -> int:
    raise_on_signals()
    loaded = configs.load(path, overrides=(), root=None)
    try:
        launch(
            Client.connect(namespace=loaded.config.kubernetes.namespace),
            Launch(
                manifests=render(loaded, only=("train",)),
                run=run_storage(loaded.config),
                identity=f"launcher-{os.getpid()}",
                limits=Limits.of(loaded.config),
                cancelled=lambda: cancelled == "cancelled",
                tell=lambda line: print(line, flush=True),
            ),
        )
    except (ShardlineError, Stopped) as error:
        print(error, flush=True)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
