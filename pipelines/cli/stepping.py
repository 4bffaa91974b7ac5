"""How the commands that run one step do so: with its progress on stderr, in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from shardline.components.common.config import Loaded

T = TypeVar("T")


def run_step(name: str, loaded: Loaded, step: Callable[[], T]) -> T:
    """Call `step`, which does the pipeline step `name`, and show how far it is.

    Raises:
        ShardlineError: whatever ended the step.
        Stopped: a signal did; it says where the same command goes on.
    """
    from shardline.components.common.runfolder import run_storage
    from shardline.pipelines.stopping import watching

    with watching(run_storage(loaded.config), [name]):
        return step()
