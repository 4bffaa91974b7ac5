"""Which documents are held out of training, and which ones are too much like those to be trained on. Pure.

Called by the workers. Both decisions depend on a document's text alone (and on the set of held-out fingerprints), so
no order, worker or unit appears in them.

Near-duplicates are found as by Manber, "Finding Similar Files in a Large File System" (USENIX 1994): of the hashes of
all windows of 50 characters, those that are 0 modulo 16 are kept as the document's fingerprints. White space is made
uniform first, so indentation and line breaks don't hide a copy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from shardline.components.sharding.blocks import U64

WINDOW = 50
KEEP_ONE_IN = 16
#: A training document is a near-duplicate when this share of its fingerprints is among the held-out ones.
NEAR = 0.5

_BASE = 0x9E3779B97F4A7C15 | 1
_INVERSE = pow(_BASE, -1, 1 << 64)
_CHUNK = 1 << 20


def drawn(data: bytes, share: float, *, purpose: str) -> bool:
    """Whether a document falls into a share of all documents: a keyed hash of its UTF-8 bytes decides.

    Draws of different `purpose` are independent.
    """
    digest = hashlib.blake2b(data, digest_size=8, key=purpose.encode()).digest()
    return int.from_bytes(digest, "little") < int(share * (1 << 64))


def fingerprints(text: str) -> U64:
    """The fingerprints of a document, without order, repetitions kept; never empty.

    A document that has none, most of them shorter than a window, is stood for by the hash of the whole text.
    """
    uniform = " ".join(text.split())
    letters = np.frombuffer(uniform.encode("utf-32-le"), np.uint32)
    kept = [_kept(letters[start : start + _CHUNK + WINDOW - 1]) for start in range(0, len(letters), _CHUNK)]
    found = np.concatenate(kept) if kept else np.empty(0, np.uint64)
    if len(found):
        return found
    whole = hashlib.blake2b(uniform.encode(), digest_size=8).digest()
    return np.frombuffer(whole, "<u8").astype(np.uint64)


def union(parts: Iterable[U64]) -> U64:
    """All fingerprints of the parts, sorted, each once."""
    found: U64 = np.unique(np.concatenate([np.empty(0, np.uint64), *parts]))
    return found


def is_near(prints: U64, held_out: U64) -> bool:
    """Whether a document with these fingerprints is a near-duplicate of held-out ones (`held_out`: as from `union`)."""
    if not len(held_out):
        return False
    place = np.minimum(np.searchsorted(held_out, prints), len(held_out) - 1)
    return bool(np.count_nonzero(held_out[place] == prints) >= NEAR * len(prints))


def _kept(letters: npt.NDArray[np.uint32]) -> U64:
    """The kept hashes of the windows of `letters`: each is the sum of letter[i] * BASE**i modulo 2**64, then mixed."""
    windows = len(letters) - WINDOW + 1
    if windows < 1:
        return np.empty(0, np.uint64)
    sums = np.zeros(len(letters) + 1, np.uint64)
    np.cumsum(letters.astype(np.uint64) * _powers(_BASE, len(letters)), out=sums[1:])
    # Dividing by BASE**start makes the hash of a window independent of where it stands.
    hashes = (sums[WINDOW:] - sums[:windows]) * _powers(_INVERSE, windows)
    hashes ^= hashes >> np.uint64(32)
    hashes *= np.uint64(0xD6E8FEB86659FD93)
    hashes ^= hashes >> np.uint64(32)
    kept: U64 = hashes[hashes % np.uint64(KEEP_ONE_IN) == 0]
    return kept


_power_tables: dict[int, U64] = {}


def _powers(base: int, count: int) -> U64:
    table = _power_tables.get(base)
    if table is None or len(table) < count:
        size = min(max(count, 1 << 14) * 2, _CHUNK + WINDOW)
        factors = np.full(size, base, np.uint64)
        factors[0] = 1
        table = _power_tables[base] = np.cumprod(factors)
    return table[:count]
