"""A group's state as text for a store that takes small objects only. Pure. Called by `kube_board`.

What grows with the number of members changes once a generation, and the rest more often. As soon as it is more than a
few kilobytes it is therefore apart, compressed: the *details*, which each member reads once a generation, and which the
text names by their hash. With 4,096 members these are some hundred kilobytes; an object of the API server may have a
megabyte.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import lzma
from typing import Any

from shardline.components.elasticity.group.state import State

_DETAILED = ("ranks", "nodes", "job", "serving")
_KEY = "details"
#: Characters up to which they stay in the text: for whoever looks at it, and for the sake of one call less.
_INLINE = 8 << 10
#: No details are larger than that: who wrote more than fits into the memory of an agent is no agent.
_LARGEST = 256 << 20


def encoded(state: State) -> tuple[str, str | None]:
    """The text, and the details as base64; None where they are in the text."""
    value = state.to_json()
    details = json.dumps({key: value[key] for key in _DETAILED}, separators=(",", ":"))
    if len(details) <= _INLINE:
        return json.dumps(value, indent=1), None
    packed = base64.b64encode(lzma.compress(details.encode(), preset=1)).decode()
    small = {key: each for key, each in value.items() if key not in _DETAILED}
    return json.dumps({**small, _KEY: digest(packed)}, indent=1), packed


def digest(packed: str) -> str:
    """By which the text names details."""
    return hashlib.sha256(packed.encode()).hexdigest()[:16]


def named(text: str) -> str | None:
    """The digest of the details that belong to the text; None when it has all in itself.

    Raises:
        ValueError, TypeError, AttributeError: it is not what `encoded` made.
    """
    found = json.loads(text).get(_KEY)
    return None if found is None else str(found)


def decoded(text: str, packed: str | None) -> State:
    """What was encoded.

    Raises:
        ValueError, TypeError, AttributeError: it is not what `encoded` made.
    """
    value = json.loads(text)
    value.pop(_KEY, None)
    return State.from_json({**value, **(_unpacked(packed) if packed is not None else {})})


@functools.lru_cache(maxsize=1)
def _unpacked(packed: str) -> dict[str, Any]:
    """The details. They stay the same over several states; nobody changes them."""
    try:
        unpacker = lzma.LZMADecompressor()
        data = unpacker.decompress(base64.b64decode(packed, validate=True), max_length=_LARGEST)
    except lzma.LZMAError as error:
        raise ValueError(f"details that cannot be unpacked: {error}") from error
    if not unpacker.eof:
        raise ValueError("details that end too early or are too large")
    return dict(json.loads(data))
