"""What a person asks of a run that is at work: files in `control/` of its folder.

Called by the commands that ask (`ask`) and by rank 0 of the workers (`Mailbox`). A request is meant for the owner that
the run has when it is made: left behind by one that was killed, it means nothing to the next.
"""

from __future__ import annotations

from typing import Any, Literal

from shardline.components.common.errors import ShardlineError, UserError
from shardline.components.common.owner import owner
from shardline.components.common.runfolder import STATUS_FILE, read_json, write_json
from shardline.components.common.storage import Storage
from shardline.components.common.streams import now
from shardline.components.common.ticking import Ticking

Request = Literal["stop", "profile", "regroup"]
REQUESTS: tuple[Request, ...] = ("stop", "profile", "regroup")


def ask(run: Storage, request: Request, **details: Any) -> None:
    """Ask the run that is at work in `run`.

    Raises:
        UserError: none is, or it is not training.
    """
    holder = owner(run)
    if holder is None or not holder["alive"]:
        raise UserError("nobody is at work on this run", where=run.url, hint="`shardline status` shows how far it is")
    status = read_json(run, STATUS_FILE) or {}
    if status.get("phase") != "train":
        raise UserError(
            f"this run is not training now (its phase: {status.get('phase', 'the beginning')})",
            where=run.url,
            hint=f"wait until it is, or interrupt process {holder['pid']} on {holder['host']}",
        )
    put(run, request, fence=holder["fence"], **details)


def put(run: Storage, request: Request, *, fence: int, **details: Any) -> None:
    """Leave a request to the owner with `fence`."""
    write_json(run, _path(request), {"fence": fence, "asked": now(), **details})


class Mailbox:
    """The requests to the owner with `fence`, looked for now and then for the length of a `with` block."""

    def __init__(self, run: Storage, *, fence: int) -> None:
        self._run, self._fence = run, fence
        self._found: dict[Request, dict[str, Any]] = {}
        self._ticking = Ticking(run, self._look, name="mailbox")

    def __enter__(self) -> Mailbox:
        self._ticking.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ticking.__exit__(*exc)

    def get(self, request: Request) -> dict[str, Any] | None:
        """The details of a request that is there."""
        return self._found.get(request)

    def done(self, request: Request) -> None:
        """It was seen to."""
        self._run.delete(_path(request))
        self._found.pop(request, None)

    def _look(self) -> None:
        for request in REQUESTS:
            if request not in self._found:
                self._look_for(request)

    def _look_for(self, request: Request) -> None:
        try:
            details = read_json(self._run, _path(request))
        except ShardlineError:
            return  # storage that fails for a moment: the next look is as good
        if details is not None and details.get("fence") == self._fence:
            self._found[request] = details


def _path(request: Request) -> str:
    return f"control/{request}.json"
