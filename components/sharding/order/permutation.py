"""Keyed permutations of [0, n): evaluated where needed, nothing stored. Pure numpy.

A Feistel network over the next power of 4 with cycle walking (Black & Rogaway, "Ciphers with Arbitrary Finite
Domains", CT-RSA 2002).
"""

from __future__ import annotations

import hashlib
import json

import numpy as np

from shardline.components.sharding.blocks import I64, U64

ROUNDS = 8


def round_keys(*names: str | int) -> U64:
    """The keys of the permutation that goes by `names`: a hash of them."""
    text = json.dumps(["shardline order", *names]).encode()
    return np.frombuffer(hashlib.blake2b(text, digest_size=8 * ROUNDS).digest(), "<u8").astype(np.uint64)


def permute(values: I64, size: int, keys: U64) -> I64:
    """Where each of `values`, all in [0, size), goes under the permutation of [0, size) that `keys` choose.

    Args:
        keys: uint64, one for each round; an even number of them.
    """
    if size <= 1 or not len(values):
        return np.zeros_like(values)
    half = np.uint64(max(1, -(-(size - 1).bit_length() // 2)))
    out = _feistel(values.astype(np.uint64), half, keys)
    walking = np.flatnonzero(out >= size)
    while len(walking):
        out[walking] = _feistel(out[walking], half, keys)
        walking = walking[out[walking] >= size]
    return out.astype(np.int64)


def _feistel(values: U64, half: np.uint64, keys: U64) -> U64:
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = values >> half, values & mask
    for key in keys:
        left, right = right, left ^ (_mix(right + key) & mask)
    return (left << half) | right


def _mix(values: U64) -> U64:
    # The finaliser of splitmix64 (Steele, Lea & Flood 2014; the constants are Stafford's "Mix13").
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
