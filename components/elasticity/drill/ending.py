"""Have a disturbed run save and end. Called by the sites of a drill."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from shardline.components.common import control
from shardline.components.common.errors import PeerLost, ShardlineError
from shardline.components.common.owner import owner
from shardline.components.common.storage import Storage


def stop(run: Storage, *, ended: Callable[[], bool], poll: float, patience: float) -> None:
    """Ask the run to stop, each of its owners once, until it has `ended`; looked for every `poll` seconds.

    Raises:
        PeerLost: it has not after `patience` seconds.
    """
    deadline, asked = time.monotonic() + patience, None
    while not ended():
        holder = owner(run)
        # Whoever takes the lead meanwhile knows nothing of what the one before was asked.
        if holder is not None and holder["alive"] and holder["fence"] != asked:
            with contextlib.suppress(ShardlineError):
                control.ask(run, "stop")
                asked = holder["fence"]
        if time.monotonic() > deadline:
            raise PeerLost("the run does not save and end when it is asked to", where=run.url)
        time.sleep(poll)
