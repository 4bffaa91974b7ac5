"""The lock that a `swap` holds on stores that rename but do not compare. Called by the back ends.

A swap has to compare before it replaces, and nobody else may replace in between. Its lock is a folder, `.NAME.swap`,
and is held by the one file in it, which has a random name and is the new content:

    .NAME.RANDOM/RANDOM     written, then the folder is renamed to
    .NAME.swap/RANDOM       which is refused while another's file is in there; when NAME is as expected,
    NAME                    by a rename of that file, which replaces the content and frees the lock in the same step.

A holder that stands still, as it died, hangs or was stopped, is pushed out: its file is taken out of the folder by its
name. If it wakes, its rename finds no file to rename, so it cannot replace what it compared too long ago. A lock of the
system knows no such end: others wait for a process that hangs for as long as it does.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_POLL_SECONDS = 0.02


def acquire(
    take: Callable[[], bool],
    holders: Callable[[], list[str]],
    push_out: Callable[[str], None],
    *,
    seconds: float,
    is_dead: Callable[[str], bool] = lambda holder: False,
) -> None:
    """Wait until the lock is taken.

    Args:
        take: puts one's own folder in the place of the lock; False while another's file is in there.
        holders: the names of the files in the lock, at most one unless others are pushed out.
        push_out: takes a file of that name out of the lock; without error if it is gone.
        seconds: how long the same file may stay.
        is_dead: whether it is known that a holder has ended, so that nothing has to be waited for.
    """
    seen: list[str] = []
    since = time.monotonic()
    while not take():
        found = holders()
        if found != seen:
            seen, since = found, time.monotonic()
        late = time.monotonic() - since > seconds
        for holder in found:
            if late or is_dead(holder):
                push_out(holder)
        time.sleep(_POLL_SECONDS)
