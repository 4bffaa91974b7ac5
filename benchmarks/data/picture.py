"""The results of `run` as bars: SVG text. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_WIDTH, _LABEL, _ROW, _BAR = 820, 170, 22, 14
_OURS, _OTHERS = "#2563eb", "#94a3b8"


def bars(panels: Sequence[tuple[str, Sequence[tuple[str, float]]]], *, note: str) -> str:
    """Panels side by side: each a title, and labels with their values; longer is better. Ours are coloured."""
    rows = max(len(values) for _, values in panels)
    height = 64 + rows * _ROW
    width = _WIDTH // len(panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="system-ui, sans-serif" font-size="12" fill="#334155">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for number, (title, values) in enumerate(panels):
        parts += _panel(title, values, left=number * width + 12, width=width - 24)
    parts += [f'<text x="12" y="{height - 10}" font-size="11" fill="#64748b">{escape(note)}</text>', "</svg>"]
    return "\n".join(parts) + "\n"


def _panel(title: str, values: Sequence[tuple[str, float]], *, left: int, width: int) -> list[str]:
    parts = [f'<text x="{left}" y="20" font-weight="600">{escape(title)}</text>']
    room = width - _LABEL - 52
    longest = max(value for _, value in values)
    for row, (label, value) in enumerate(values):
        y = 36 + row * _ROW
        length = max(1.0, room * value / longest)
        colour = _OURS if label.startswith("shardline") else _OTHERS
        number = f"{value:,.0f}" if value >= 10 else f"{value:.1f}"
        parts += [
            f'<text x="{left + _LABEL - 8}" y="{y + 11}" text-anchor="end">{escape(label)}</text>',
            f'<rect x="{left + _LABEL}" y="{y}" width="{length:.1f}" height="{_BAR}" rx="2" fill="{colour}"/>',
            f'<text x="{left + _LABEL + length + 6:.1f}" y="{y + 11}">{number}</text>',
        ]
    return parts
