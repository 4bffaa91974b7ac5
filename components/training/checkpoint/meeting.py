"""How the ranks of one save tell each other how it went: keys in the store of their generation, no collective.

Called by `saving`, from the thread that writes. A save takes as long as storage does, so nobody is given a time for
all of it: a rank is lost when no sign came from any that is missing for as long as the run waits for a silent peer.
"""

from __future__ import annotations

import json
import threading
import time
from datetime import timedelta
from typing import Any

from shardline.components.common.errors import PeerLost

_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.25
_SIGN_SECONDS = 1.0


class GivenUp(Exception):
    """The save was given up by this process: it is ending."""


class Meeting:
    """Save number `number` of a generation, as seen by one rank.

    Args:
        store: of `torch.distributed`; it belongs to this generation alone.
        silence: how long to wait without a sign from a rank that is missing.
        given_up: set when this process no longer wants the save.
    """

    def __init__(
        self, store: Any, *, number: int, rank: int, world: int, silence: timedelta, given_up: threading.Event
    ) -> None:
        self._store = store
        self._number = number
        self._rank = rank
        self._world = world
        self._silence = silence.total_seconds()
        self._given_up = given_up
        self._last_sign = 0.0

    def _key(self, name: str, number: int | None = None) -> str:
        return f"checkpoint/{self._number if number is None else number}/{name}"

    def sign(self) -> None:
        """This rank is at work. Raises GivenUp when it should not be."""
        if self._given_up.is_set():
            raise GivenUp
        if time.monotonic() - self._last_sign > _SIGN_SECONDS:
            self._last_sign = time.monotonic()
            self._store.add(self._key("signs"), 1)

    def report(self, outcome: dict[str, Any]) -> None:
        """Say how this rank's part went."""
        self._store.set(self._key(f"report/{self._rank}"), json.dumps(outcome))

    def reports(self) -> list[dict[str, Any]]:
        """What every rank reported, by rank. For rank 0.

        Raises:
            PeerLost: a rank is silent.
        """
        keys = [self._key(f"report/{rank}") for rank in range(self._world)]
        self._wait_for(keys)
        found = [json.loads(self._store.get(key)) for key in keys]
        # All have left the meeting before: its keys would pile up in a long run.
        if self._number:
            for name in ("decision", "signs", *(f"report/{rank}" for rank in range(self._world))):
                self._store.delete_key(self._key(name, self._number - 1))
        return found

    def decide(self, decision: dict[str, Any]) -> None:
        """Say how the save as a whole ended. For rank 0."""
        self._store.set(self._key("decision"), json.dumps(decision))

    def decision(self) -> dict[str, Any]:
        """What rank 0 decided.

        Raises:
            PeerLost: nobody gives a sign.
        """
        self._wait_for([self._key("decision")])
        return dict(json.loads(self._store.get(self._key("decision"))))

    def _wait_for(self, keys: list[str]) -> None:
        pause, signs, since = _FIRST_PAUSE, -1, time.monotonic()
        # Never a wait inside the store: it would keep its client from the rest of this process.
        while not self._store.check(keys):
            if self._given_up.wait(pause):
                raise GivenUp
            pause = min(2 * pause, _LONGEST_PAUSE)
            found = self._store.add(self._key("signs"), 0)
            if found != signs:
                signs, since = found, time.monotonic()
            elif time.monotonic() - since > self._silence:
                raise PeerLost(
                    f"{self._missing(keys)} gave no sign for {self._silence:.0f} s while a checkpoint was saved"
                )

    def _missing(self, keys: list[str]) -> str:
        if len(keys) == 1 and keys[0].endswith("decision"):
            return "rank 0"
        missing = [key.rpartition("/")[2] for key in keys if not self._store.check([key])]
        return f"rank{'s' * (len(missing) > 1)} {', '.join(missing[:8])}"
