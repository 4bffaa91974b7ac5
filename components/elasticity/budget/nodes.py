"""The nodes that runs do without: `nodes/{name}.json` below the storage root, for all runs there and until a person
takes a node in again.

Called by the agent that leads, by what makes jobs, by the operator and by `shardline nodes`. One that was taken in
again is in `nodes/cleared/`, so that what was before does not speak against it.

Errors: `UserError` for a name that no node has; `DamagedData` for a record that is not what was written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from shardline.components.common.errors import DamagedData, UserError
from shardline.components.common.storage import Storage
from shardline.components.common.streams import now
from shardline.components.elasticity.budget.ledger import Entry

FOLDER = "nodes"
_CLEARED = "cleared"
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,251}[A-Za-z0-9])?")


@dataclass(frozen=True, kw_only=True)
class BadNode:
    """A node that is done without.

    Attributes:
        since: RFC 3339.
        run: the folder of the run that found it bad; "" where a person did.
        entries: of that run's ledger: what speaks against it, as JSON.
    """

    name: str
    reason: str
    since: str
    run: str = ""
    entries: tuple[dict[str, Any], ...] = ()


class BadNodes:
    """Those of the storage root `root`."""

    def __init__(self, root: Storage) -> None:
        self._folder = root.at(FOLDER)

    def names(self) -> list[str]:
        """In order; one request."""
        return [name.removesuffix(".json") for name in self._folder.names() if name.endswith(".json")]

    def all(self) -> list[BadNode]:
        found = (self.get(name) for name in self.names())
        return [each for each in found if each is not None]

    def get(self, name: str) -> BadNode | None:
        """None for a node that is not set aside."""
        check_name(name)
        value = self._read(f"{name}.json")
        if value is None:
            return None
        try:
            fields = {key: value[key] for key in ("name", "reason", "since", "run")}
            return BadNode(**{key: str(item) for key, item in fields.items()}, entries=tuple(value["entries"]))
        except (TypeError, KeyError) as error:
            raise self._damaged(f"{name}.json") from error

    def set_aside(self, name: str, *, reason: str, run: str = "", entries: Sequence[Entry] = ()) -> bool:
        """Do without the node from now on; False when it is set aside already, for the reason that it has then."""
        check_name(name)
        told = tuple(entry.to_json() for entry in entries)
        record = {"v": 1, **asdict(BadNode(name=name, reason=reason, since=now(), run=run, entries=told))}
        return self._folder.create(f"{name}.json", _encode(record))

    def clear(self, name: str) -> bool:
        """Take the node in again; False when it was not set aside."""
        check_name(name)
        record = self._read(f"{name}.json")
        if record is None:
            return False
        self._folder.write(f"{_CLEARED}/{name}.json", _encode({**record, "cleared": now()}))
        self._folder.delete(f"{name}.json")
        return True

    def cleared(self, name: str) -> datetime | None:
        """When the node was last taken in again."""
        check_name(name)
        value = self._read(f"{_CLEARED}/{name}.json")
        try:
            return None if value is None else datetime.fromisoformat(value["cleared"])
        except (ValueError, TypeError, KeyError) as error:
            raise self._damaged(f"{_CLEARED}/{name}.json") from error

    def _read(self, path: str) -> dict[str, Any] | None:
        try:
            return dict(json.loads(self._folder.read(path)))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise self._damaged(path) from error

    def _damaged(self, path: str) -> DamagedData:
        where = self._folder.url_of(path)
        return DamagedData("is not what was written", where=where, hint="delete it, and set the node aside again")


def check_name(name: str) -> None:
    """Raises UserError for what no node is called."""
    if _NAME.fullmatch(name) is None:
        raise UserError(
            "is no name of a node", where=repr(name), hint="take it from `kubectl get nodes`, or a hostname"
        )


def _encode(record: dict[str, Any]) -> bytes:
    return (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode()
