"""One drill: faults are made at a site, one after the other, while the run's own records tell how it goes on.

Called by `shardline drill`. `Site` is the seam: what there is to disturb, and what looks after it as a cluster does.

Errors: those of the site, among them the one that ended the run; `PeerLost` for a run that does not recover.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Protocol

from shardline.components.common.errors import PeerLost
from shardline.components.common.storage import Storage
from shardline.components.common.streams import StreamReader
from shardline.components.elasticity.drill.judging import Struck, seconds_of
from shardline.components.elasticity.drill.plan import Fault

_POLL_SECONDS = 0.1
#: Seconds to recover beyond the time after which a silent peer counts as lost: cold starts, on a busy machine.
_PATIENCE = 300.0
#: After these no new generation need form.
_MAY_GO_UNNOTICED = ("pause",)


class Site(Protocol):
    """Where a run's agents are, for the length of a `with` block, which leaves none behind that it has started."""

    def __enter__(self) -> Site: ...

    def __exit__(self, *exc: object) -> None: ...

    def tend(self) -> None:
        """Look after the agents, as whatever started them does: have another one in the place of each that is gone.

        Raises:
            ShardlineError: the error that ended the run.
        """
        ...

    def strike(self, fault: Fault) -> tuple[str, float] | None:
        """Make `fault`; its victim in words, and when. None: there is nobody yet to whom it could happen."""
        ...

    def whole(self) -> int | None:
        """The generation in which all train together that should, or 0 where that cannot be known; None while they do
        not, or a fault is still under way.
        """
        ...

    def finish(self) -> None:
        """Have the run save and end; returns when it has."""
        ...


class Conductor:
    """Makes the faults of a drill.

    Args:
        timeout: `elastic.timeout`, in seconds.
        tell: shows a line.

    Attributes:
        struck: the faults that were made.
    """

    def __init__(self, site: Site, *, run: Storage, timeout: float, tell: Callable[[str], None]) -> None:
        self.struck: list[Struck] = []
        self._site, self._tell = site, tell
        self._patience = timeout + _PATIENCE
        self._reader = StreamReader(run.at("metrics"))
        self._newest = self._needed = 0
        self._last_step = -1
        self._last_time = 0.0

    def drill(self, faults: Iterator[Fault], *, count: int | None, seconds: float | None) -> None:
        """Make `count` faults, or as many as fall due within `seconds` of the first optimizer step.

        Raises:
            PeerLost: the run did not recover from the last of them.
        """
        self._recover()
        began = time.monotonic()
        for fault in faults:
            if count is not None and fault.number > count:
                break
            if not fault.early:
                self._recover()
            due = time.monotonic() + fault.wait
            if seconds is not None and due - began > seconds:
                break
            self._strike(fault, due=due)
        self._recover()

    def _strike(self, fault: Fault, *, due: float) -> None:
        deadline = due + self._patience
        while True:
            self._look()
            if time.monotonic() >= due:
                self._needed = 0 if fault.kind in _MAY_GO_UNNOTICED else self._newest + 1
                made = self._site.strike(fault)
                if made is not None:
                    victim, moment = made
                    self.struck.append(Struck(number=fault.number, kind=fault.kind, victim=victim, time=moment))
                    self._tell(f"fault {fault.number}: {victim}")
                    return
            if time.monotonic() > deadline:
                raise PeerLost(f"nobody was there for fault {fault.number} ({fault.kind})", where="drill")
            time.sleep(_POLL_SECONDS)

    def _recover(self) -> None:
        """Return when all train together again, and have finished a step since the last fault."""
        since = self.struck[-1].time if self.struck else 0.0
        deadline = time.monotonic() + self._patience
        while True:
            self._look()
            whole = self._site.whole()
            if whole is not None and self._last_time > since and self._newest >= max(self._needed, whole):
                return
            if time.monotonic() > deadline:
                after = f"fault {self.struck[-1].number} ({self.struck[-1].victim})" if self.struck else "the start"
                raise PeerLost(
                    f"{self._patience:.0f} s after {after} the run has not recovered: its last finished step is "
                    f"{self._last_step}",
                    where="drill",
                )
            time.sleep(_POLL_SECONDS)

    def _look(self) -> None:
        self._site.tend()
        for record in self._reader.new():
            self._newest = max(self._newest, record["generation"])
            self._last_step, self._last_time = record["data"]["step"], seconds_of(record)
