"""What killed writers leave behind, and when it is nobody's any more. Called by the back ends.

A file that is being written has another name, `.NAME.RANDOM`, until it is whole; an upload in parts has none. What is
left of one when its writer is killed may be removed, never what a living writer works on:

* In a local folder a writer holds a lock on its file, which the system takes from it when it ends, however that may be.
  What nobody holds and nobody has touched for `LOCAL_SECONDS` is nobody's; the seconds are for a file that has just
  been made and for mounts that keep locks to their own machine.
* On other stores there is no such lock: what has stood still for `REMOTE_SECONDS` by the store's own clock is nobody's.
  A part, or a whole file of a shard, takes seconds, and a store that fails is given up after minutes.

A writer that stood still for longer finds its file gone, gets an error, and has overwritten nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable

LOCAL_SECONDS = 60.0
REMOTE_SECONDS = 3600.0

#: Says of a file's name whether what is left of it is wanted.
Wanted = Callable[[str], bool]

# mkstemp's letters, or a UUID's.
_UNFINISHED = re.compile(r"\.(.+)\.(?:[a-z0-9_]{8}|[0-9a-f]{32})")


def is_left_of(entry: str, of: Wanted) -> bool:
    """Whether `entry` of a folder is, or was, the unfinished state of a file that is wanted."""
    found = _UNFINISHED.fullmatch(entry)
    return found is not None and of(found[1])
