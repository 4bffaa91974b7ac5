"""What a person asks of training, and when all ranks do it: after the same optimizer step.

Called by `worker`. Rank 0 looks for requests beside training; what it finds goes along with the sum that every step
makes of the losses, so that nothing waits for it.
"""

from __future__ import annotations

import contextlib
import json
from types import TracebackType
from typing import Any

from shardline.components.common.control import REQUESTS, Mailbox
from shardline.components.common.workers import WorkerContext

_BITS = {request: 1 << place for place, request in enumerate(REQUESTS)}
#: What rank 0 asks for by itself.
SNAPSHOT = 1 << len(REQUESTS)


class Requests:
    """The requests to one generation, for the length of a `with` block."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._mailbox = Mailbox(context.run, fence=context.fence) if context.rank == 0 else None
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Requests:
        if self._mailbox:
            self._open.enter_context(self._mailbox)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def waiting(self) -> int:
        """This rank's part of the number that says what there is to do; the ranks' sum goes to `agreed`."""
        if self._mailbox is None:
            return 0
        return sum(bit for request, bit in _BITS.items() if self._mailbox.get(request) is not None)

    def agreed(self, number: int, *, step: int) -> dict[str, dict[str, Any]]:
        """What all ranks are to do after `step`, with the details of each. Collective."""
        found: dict[str, dict[str, Any]] = {}
        for request, bit in _BITS.items():
            if number & bit:
                key = f"request/{request}/{step}"
                if self._mailbox:
                    self._context.store.set(key, json.dumps(self._mailbox.get(request)))
                    self._mailbox.done(request)
                found[request] = json.loads(self._context.store.get(key))
        return found
