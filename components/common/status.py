"""How far a run is, as `status.json`: a picture for whoever looks, written beside the work and never in its way.

Called by the steps. A thread puts out the newest numbers now and then; storage that fails for a moment costs a picture,
nothing else. The same thread notices when another process has taken the run over.
"""

from __future__ import annotations

from typing import Any

from shardline.components.common.errors import ShardlineError, Superseded
from shardline.components.common.owner import Lease
from shardline.components.common.runfolder import STATUS_FILE, write_json
from shardline.components.common.storage import Storage
from shardline.components.common.streams import now
from shardline.components.common.ticking import Ticking


class StatusWriter:
    """Says how far the phase `phase` of a run is, for the length of a `with` block."""

    def __init__(self, run: Storage, *, phase: str, generation: int, lease: Lease) -> None:
        self._run = run
        self._lease = lease
        self._fixed = {"phase": phase, "generation": generation}
        self._numbers: dict[str, Any] | None = None
        self._superseded: Superseded | None = None
        self._ticking = Ticking(run, self._put, name="status")

    def set(self, *, step: int, **numbers: Any) -> None:
        """The newest numbers: `step` counts what the phase counts in. It writes nothing itself.

        Raises:
            Superseded: another process has taken the run over.
        """
        if self._superseded:
            raise self._superseded
        self._numbers = {"step": step, **numbers}

    def __enter__(self) -> StatusWriter:
        self._ticking.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ticking.__exit__(*exc)
        self._put()

    def _put(self) -> None:
        if self._superseded:
            return
        numbers, self._numbers = self._numbers, None
        try:
            self._lease.check()
            if numbers is not None:
                write_json(self._run, STATUS_FILE, {**self._fixed, **numbers, "heartbeat": now()})
        except Superseded as error:
            self._superseded = error
        except ShardlineError:
            return  # the next picture is as good
