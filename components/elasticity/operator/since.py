"""For how long something has held, by this machine's clock alone. Pure. Called by `turn`."""

from __future__ import annotations

from collections.abc import Hashable, Iterable


class Since:
    """Seconds for which each of some things has held without a break, as far as was looked.

    Args:
        longest: seconds between two looks after which nothing is known to have held meanwhile: all begins anew.
    """

    def __init__(self, *, longest: float) -> None:
        self._longest = longest
        self._looked: float | None = None
        self._began: dict[Hashable, float] = {}

    def hold(self, things: Iterable[Hashable], *, now: float) -> None:
        """`things` hold now, and nothing else does."""
        if self._looked is not None and now - self._looked > self._longest:
            self._began = {}
        self._looked = now
        self._began = {each: self._began.get(each, now) for each in things}

    def holds(self, thing: Hashable) -> bool:
        return thing in self._began

    def seconds(self, thing: Hashable, *, now: float) -> float:
        """0 for what does not hold."""
        return now - self._began.get(thing, now)
