"""Numbers as people read them. Pure."""

from __future__ import annotations

import math
from datetime import UTC, datetime


def count(value: float) -> str:
    """`value` to three digits with a decimal prefix: 999, 1.23 k, 45.6 M, 7.89 B."""
    for prefix, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        # 999,950 shows as 1.00 M, not as 1000 k.
        if abs(value) >= size * 0.9995:
            return f"{_digits(value / size)} {prefix}"
    return str(int(value)) if value == int(value) else _digits(value)


def size(value: float) -> str:
    """Bytes with a binary prefix: 12 B, 3.40 KiB, 1.20 GiB."""
    for prefix, unit in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= unit:
            return f"{_digits(value / unit)} {prefix}"
    return f"{int(value)} B"


def duration(seconds: float) -> str:
    """Seconds as 0.42 s, 12.3 s, 4 min 05 s, 3 h 07 min or 2 d 04 h."""
    if seconds < 59.95:
        return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600:02d} h"


def decimal(value: object, *, places: int = 3) -> str:
    """A number to `places` decimals; one that JSON has no form for is stored as text, and one that isn't there None."""
    if value is None:
        return "–"
    number = finite(value)
    return f"{number:.{places}f}" if number is not None else str(value)


def finite(value: object) -> float | None:
    """`value` as a float when it is a finite number, else None."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None


def moment(time: str) -> datetime:
    """An RFC 3339 time."""
    return datetime.fromisoformat(time.replace("Z", "+00:00")).astimezone(UTC)


def clock(time: str) -> str:
    """An RFC 3339 time as 2026-03-01 14:05:09 (UTC)."""
    return moment(time).strftime("%Y-%m-%d %H:%M:%S")


def between(first: str, last: str) -> float:
    """Seconds from one RFC 3339 time to another."""
    return (moment(last) - moment(first)).total_seconds()


def _digits(value: float) -> str:
    places = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{places}f}"
