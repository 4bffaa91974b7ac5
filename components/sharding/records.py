"""What the files of a corpus are read into, and what is wrong with a record that is none. Pure.

Made by `documents` and `parquet`, used by the workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

#: More would leave no room for the weights of others where sums are of 32 bits.
HEAVIEST = 1_000_000


@dataclass(frozen=True, slots=True)
class Document:
    """A text and its place: the number of its file, and its byte offset there (in Parquet: its row number).

    `prompt` comes before the text, and is not trained on. `weight` is what each of its tokens counts in the loss.
    """

    file: int
    offset: int
    text: str
    prompt: str = ""
    weight: float = 1.0

    @property
    def whole(self) -> str:
        """Prompt and text."""
        return self.prompt + self.text


@dataclass(frozen=True, slots=True)
class Skipped:
    """A document that cannot be read, and the bytes of the corpus that it takes up."""

    file: int
    offset: int
    reason: str
    size: int


Records = Iterator[Document | Skipped]


class Bad(Exception):
    """A record that is no document; the text is the reason."""


def utf8(raw: bytes) -> str:
    """Raises Bad."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise Bad("not UTF-8") from None


def too_long(longest: int) -> Bad:
    """That a record has more than `longest` bytes."""
    return Bad(f"a record of more than {longest >> 20} MiB")


def weight_of(value: Any, field: str) -> float:
    """The weight that `value` of a record's `field` is. Raises Bad."""
    # JSON's true is Python's 1; a whole number may be too large for a float.
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= HEAVIEST:
        return float(value)
    raise Bad(f"field {field!r} is no weight: it has to be a number from 0 to {HEAVIEST:,}")
