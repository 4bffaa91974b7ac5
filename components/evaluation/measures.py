"""From summed negative log-likelihoods to the numbers that people compare. Pure.

Every target token of the held-out blocks counts, end-of-text tokens included: a model has to say where a document ends,
as a compressor has to store it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

#: Above this loss `exp` leaves the range of a float.
_MAX_EXPONENT = 709.0


@dataclass(frozen=True, kw_only=True)
class Measures:
    """`loss` is in nats per token; `bits_per_byte` is per byte of UTF-8 text."""

    loss: float
    perplexity: float
    bits_per_byte: float
    tokens: int
    bytes: int

    def to_json(self) -> dict[str, Any]:
        return {
            "loss": self.loss,
            "perplexity": self.perplexity,
            "bits_per_byte": self.bits_per_byte,
            "tokens": self.tokens,
            "bytes": self.bytes,
        }


def measure(*, nats: float, tokens: int, bytes: int) -> Measures:
    """What `nats` in all, over `tokens` target tokens that stand for `bytes` bytes of text, amounts to.

    Bits per byte is nats / ln 2 / bytes: unlike the loss it does not depend on the tokenizer ("The Pile",
    arXiv:2101.00027, section 3.1).

    Raises:
        ValueError: there are no tokens or no bytes.
    """
    if tokens <= 0 or bytes <= 0:
        raise ValueError(f"nothing was measured: {tokens} tokens, {bytes} bytes")
    loss = nats / tokens
    # Compared this way round so that a loss of NaN stays NaN.
    perplexity = math.inf if loss > _MAX_EXPONENT else math.exp(loss)
    return Measures(
        loss=loss, perplexity=perplexity, bits_per_byte=nats / math.log(2) / bytes, tokens=tokens, bytes=bytes
    )
