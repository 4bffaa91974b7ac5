"""A training worker's vitals: a small file that it replaces about twice a second, for the agent beside it to serve.

The agent names the folder in an environment variable that its workers inherit (`collected`); a worker that has none
writes nothing. The step itself stores a few numbers; a thread of the worker's own writes them out, and what goes wrong
with that costs a picture and nothing else. Nobody waits for it, and no number is asked of a device for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from shardline.components.common.scratch import scratch_folder
from shardline.components.common.storage import Storage, patience
from shardline.components.common.streams import jsonable
from shardline.components.common.ticking import Ticking

#: The folder that the workers of an agent write into.
VARIABLE = "SHARDLINE_VITALS"


@dataclass(frozen=True, kw_only=True)
class Vitals:
    """What a worker tells of itself. Times are seconds since 1970; None is what it does not know (yet).

    Attributes:
        started: when it had a place in its generation; finished: when it had done its last optimizer step.
        step: optimizer steps that are done; steps: those that are to be done.
        loss: of the last one, in nats a token; tokens_per_second: of all ranks, a running mean.
        skipped: steps of this generation that left the weights as they were.
        host_bytes, device_bytes: the most memory that it had; device_limit: what its device has.
        storage_repeats: requests to the storage that its process has repeated so far; kept by the writer itself.
        checkpoint_step, checkpoint_time: of the newest committed checkpoint; of rank 0, as is checkpoint_every.
    """

    generation: int
    rank: int
    world: int
    started: float
    steps: int
    step: int | None = None
    loss: float | None = None
    tokens_per_second: float | None = None
    finished: float | None = None
    skipped: int = 0
    host_bytes: int | None = None
    device_bytes: int | None = None
    device_limit: int | None = None
    checkpoint_step: int | None = None
    checkpoint_time: float | None = None
    checkpoint_every: int | None = None
    storage_repeats: int = 0


class VitalsWriter:
    """Shows the vitals of one worker in one generation, for the length of a `with` block.

    Args:
        memory: the fields of `Vitals` about memory; asked by the thread that writes.
        first: the fields that are known now.
    """

    def __init__(self, *, memory: Callable[[], dict[str, int]], **first: Any) -> None:
        self._memory = memory
        self._vitals = asdict(Vitals(**first))
        self._lock = threading.Lock()
        self._changed = True
        folder = os.environ.get(VARIABLE)
        self._path = Path(folder, f"{self._vitals['rank']:05d}.json") if folder else None
        self._ticking = Ticking(Storage(folder), self._put, name="vitals") if folder else None

    def set(self, **numbers: Any) -> None:
        """The newest numbers, by the fields of `Vitals`. It writes nothing itself; safe from any thread."""
        with self._lock:
            self._vitals |= numbers
            self._changed = True

    def __enter__(self) -> VitalsWriter:
        if self._ticking:
            self._put()
            self._ticking.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._ticking:
            self._ticking.__exit__(*exc)
            self._put()

    def _put(self) -> None:
        if self._path is None:
            return
        with self._lock:
            repeats = patience.made()
            changed = self._changed or repeats != self._vitals["storage_repeats"]
            self._vitals["storage_repeats"], self._changed = repeats, False
            shown = dict(self._vitals)
        if changed:
            # A full disk, a folder that is gone with its agent, a device that failed: others tell of that.
            with contextlib.suppress(OSError, RuntimeError):
                early = self._path.with_suffix(".new")
                early.write_text(json.dumps(jsonable(shown | self._memory())), encoding="utf-8")
                early.replace(self._path)


def seconds_of(time: str) -> float | None:
    """Seconds since 1970, of a time as `streams.now` writes it; None where it is another text."""
    with contextlib.suppress(ValueError, OverflowError):
        return datetime.fromisoformat(time).timestamp()
    return None


def read_vitals(folder: Path) -> list[Vitals]:
    """The vitals of the newest generation that wrote into `folder`, by rank; what cannot be read is left out."""
    found = []
    for path in sorted(folder.glob("*.json")):
        with contextlib.suppress(OSError, ValueError, TypeError):
            value = dict(json.loads(path.read_bytes()))
            if isinstance(value.get("loss"), str):  # nan, inf
                value["loss"] = float(value["loss"])
            found.append(Vitals(**value))
    newest = max((each.generation for each in found), default=0)
    return [each for each in found if each.generation == newest]


@contextlib.contextmanager
def collected() -> Iterator[Path]:
    """Have the workers that are started in the block write their vitals; gives the folder.

    Raises:
        OSError: there is no folder for temporary files, or no room in it.
    """
    with scratch_folder() as folder:
        os.environ[VARIABLE] = str(folder)
        try:
            yield folder
        finally:
            os.environ.pop(VARIABLE, None)
