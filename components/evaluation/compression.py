"""What general-purpose compressors make of the held-out text: the yardstick for the model's bits per byte.

Called by the evaluation step. Works on a stream of documents, so memory does not grow with the text.
"""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

_GZIP_CONTAINER = 16 + zlib.MAX_WBITS
_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The compressors' bits per byte of the text that the tokens decode to.

    `lossless` says whether that text has as many bytes as the documents had: only then were model and compressors
    measured on the same bytes.
    """

    gzip_9: float
    xz: float
    decoded_bytes: int
    lossless: bool

    def compressors(self) -> dict[str, Any]:
        return {"gzip_9": self.gzip_9, "xz": self.xz}


def compare(documents: Iterable[str], *, expected_bytes: int) -> Comparison | None:
    """Compress `documents`, one after the other without a separator, by `gzip -9` and by `xz` (its preset, 6).

    Args:
        expected_bytes: UTF-8 bytes that the documents had before they were tokenised.

    Returns:
        None when the documents hold no text at all.
    """
    gzip = zlib.compressobj(9, zlib.DEFLATED, _GZIP_CONTAINER, zlib.DEF_MEM_LEVEL)
    xz = lzma.LZMACompressor()
    decoded = gzip_bytes = xz_bytes = 0
    for chunk in _chunks(documents):
        decoded += len(chunk)
        gzip_bytes += len(gzip.compress(chunk))
        xz_bytes += len(xz.compress(chunk))
    gzip_bytes += len(gzip.flush())
    xz_bytes += len(xz.flush())
    if not decoded:
        return None
    return Comparison(
        gzip_9=8 * gzip_bytes / decoded,
        xz=8 * xz_bytes / decoded,
        decoded_bytes=decoded,
        lossless=decoded == expected_bytes,
    )


def _chunks(documents: Iterable[str]) -> Iterator[bytes]:
    # Many short documents would otherwise cost a call into each compressor apiece.
    pending: list[bytes] = []
    size = 0
    for document in documents:
        data = document.encode()
        pending.append(data)
        size += len(data)
        if size >= _CHUNK:
            yield b"".join(pending)
            pending, size = [], 0
    yield b"".join(pending)
