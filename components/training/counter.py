"""Random numbers by counter: the value at a place depends on the key and the place alone.

Called by `initial`. No state means no draw order, so each rank can fill just its own slice and every layout gets the
same numbers. The generator is Philox4x32-10: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def key_of(seed: int, name: str) -> tuple[int, int]:
    """The two key words for the values called `name` of a run with `seed`."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


def philox(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four random 32-bit words for each counter; all words are int64 tensors of one shape."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        # int64 products wrap, but both 32-bit halves come out right: the upper one after dropping the sign extension.
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((second >> 32) & _WORD) ^ c1 ^ k0,
            second & _WORD,
            ((first >> 32) & _WORD) ^ c3 ^ k1,
            first & _WORD,
        )
        k0, k1 = (k0 + _WEYL[0]) & _WORD, (k1 + _WEYL[1]) & _WORD
    return c0, c1, c2, c3


def normal(index: Tensor, key: tuple[int, int]) -> Tensor:
    """Standard normal float64 values at the places `index` (int64 of any shape), by Box and Muller's transform."""
    zero = torch.zeros_like(index)
    words = philox((index & _WORD, (index >> 32) & _WORD, zero, zero), key)
    # Half a unit keeps the logarithm away from zero.
    radius = torch.sqrt(-2.0 * torch.log((words[0].double() + 0.5) / 2**32))
    return radius * torch.cos(words[1].double() * (2.0 * math.pi / 2**32))
