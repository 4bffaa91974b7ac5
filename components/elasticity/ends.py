"""How worker processes end, for those who have to tell others. Without torch."""

from __future__ import annotations

import signal
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class End:
    """How a worker process ended; a negative `exit_code` is the signal that ended it.

    `pid` is 0 where it was not known yet.
    """

    rank: int
    pid: int
    exit_code: int

    def __str__(self) -> str:
        who = f"rank {self.rank} (process {self.pid})" if self.pid else f"rank {self.rank}"
        if self.exit_code >= 0:
            return f"{who} ended with exit code {self.exit_code}"
        number = -self.exit_code
        return (
            f"{who} was ended by {next((each.name for each in signal.Signals if each == number), f'signal {number}')}"
        )
