"""One part of the shard step, in a pod of its own; the step itself comes after all parts and makes a data set of them.

Called by the pipeline's component. Parts do not hold the run: they work on the data set, side by side.
"""

from __future__ import annotations

import contextlib
import uuid

from shardline.components.common.config import RunConfig
from shardline.components.common.errors import ShardlineError, UserError
from shardline.components.common.events import EventLog
from shardline.components.common.runfolder import DATASET_FILE, as_adopted, read_json, run_storage
from shardline.components.common.step import stepping
from shardline.components.common.steps import STEPS
from shardline.components.sharding.making import shard_part
from shardline.components.sharding.recipe import recipe_of


def run(config: RunConfig, part: int, parts: int) -> None:
    """Do part `part` (from 0) of `parts`, unless the run has its data set.

    Raises:
        ConfigError: the run began under another identity.
        UserError: the corpus will not do.
    """
    try:
        _run(config, part, parts)
    except ShardlineError as error:
        # As the step's own, where whoever waits for it looks; one of several parts that fail at once is enough.
        with contextlib.suppress(ShardlineError), stepping(config, STEPS[0]):
            raise error
        raise


def _run(config: RunConfig, part: int, parts: int) -> None:
    folder = run_storage(config)
    adopted = as_adopted(folder, config)  # a run that would be refused is refused now, and not after all the work
    with EventLog(folder, generation=0, writer=f"shard-part-{part}-{uuid.uuid4().hex[:8]}") as events:
        events.emit("sharding.part_started", {"part": part, "parts": parts})
    if _is_needed(adopted, pinned=read_json(folder, DATASET_FILE)):
        shard_part(adopted, part, parts)


def _is_needed(config: RunConfig, *, pinned: dict[str, str] | None) -> bool:
    """Whether there is something to make: a run that has its data set needs no corpus, and takes no other one."""
    if pinned is None:
        return True
    try:
        return pinned["key"] in [link.key for link in recipe_of(config).links]
    except UserError:
        return False
