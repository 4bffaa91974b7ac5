"""The promotion gate: may this model be used? Pure: numbers in, a verdict out.

Called by the evaluation step, which records the verdict (in a pipeline it is an output), and by the command line, where
a refusal is an error (`enforce`).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from shardline.components.common.config.schema import Gate
from shardline.components.common.errors import GateRefused


@dataclass(frozen=True)
class Verdict:
    """What the gate decided, and why in one sentence."""

    passed: bool
    reason: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def decide(gate: Gate, *, bits_per_byte: float | None) -> Verdict:
    """The verdict on a model that needs `bits_per_byte` bits for a byte of held-out text (None: it wasn't measured).

    A value equal to the threshold passes; one that is no finite number never does, threshold or not.
    """
    threshold = gate.max_bits_per_byte
    if bits_per_byte is None:
        reason = "nothing was measured, as no text is held out (sharding.held_out)"
        return Verdict(threshold is None, reason)
    if not math.isfinite(bits_per_byte):
        return Verdict(False, f"the model's bits per byte is {bits_per_byte}, which is no finite number")
    if threshold is None:
        return Verdict(True, "no threshold is set (gate.max_bits_per_byte)")
    if bits_per_byte <= threshold:
        return Verdict(True, f"{bits_per_byte:.4f} bits per byte is within gate.max_bits_per_byte ({threshold:g})")
    return Verdict(False, f"{bits_per_byte:.4f} bits per byte is above gate.max_bits_per_byte ({threshold:g})")


def enforce(result: dict[str, Any], *, where: str | None = None) -> None:
    """Raise unless the evaluation result `result` passed the gate.

    Raises:
        GateRefused: it did not.
    """
    verdict = result["gate"]
    if not verdict["passed"]:
        raise GateRefused(
            f"the gate refused the model: {verdict['reason']}", where=where, hint="train longer, or raise the threshold"
        )
