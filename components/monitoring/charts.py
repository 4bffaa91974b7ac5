"""Line charts as SVG text. Pure: points in, markup out.

Colours and fonts come from the page's style sheet by class, so that one chart serves light, dark and paper.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

Point = tuple[float, float]

#: More than this many points cannot be told apart on a screen, and make the page heavy.
_MAX_POINTS = 600


@dataclass(frozen=True, kw_only=True)
class Series:
    """A line: `style` is the class that the style sheet knows, `label` what the legend calls it."""

    label: str
    style: str
    points: Sequence[Point]


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A vertical line at `x`: something happened there."""

    x: float
    label: str


@dataclass(frozen=True, kw_only=True)
class Level:
    """A horizontal line at `y`: a value to compare with."""

    y: float
    label: str


@dataclass(frozen=True, kw_only=True)
class Chart:
    """What to draw: axes are linear, `from_zero` makes the vertical one begin at 0."""

    title: str
    unit: str
    series: Sequence[Series]
    x_label: str = "optimizer step"
    marks: Sequence[Mark] = ()
    levels: Sequence[Level] = ()
    from_zero: bool = False
    format_y: Callable[[float], str] = "{:g}".format


@dataclass(frozen=True)
class _Frame:
    """Where data lies on the drawing."""

    left: float
    right: float
    top: float
    bottom: float
    x_range: tuple[float, float]
    y_range: tuple[float, float]

    def x(self, value: float) -> float:
        low, high = self.x_range
        return self.left + (value - low) / (high - low) * (self.right - self.left)

    def y(self, value: float) -> float:
        low, high = self.y_range
        return self.bottom - (value - low) / (high - low) * (self.bottom - self.top)


def render(chart: Chart, *, width: int, height: int, style: str = "") -> str:
    """`chart` as an `<svg>` element of the class `style`, `width` x `height` units that scale with the page.

    Raises:
        ValueError: no series has a point.
    """
    points = [point for series in chart.series for point in series.points]
    if not points:
        raise ValueError(f"{chart.title}: there is nothing to draw")
    x_range = _widened(min(x for x, _ in points), max(x for x, _ in points))
    values = [y for _, y in points] + [level.y for level in chart.levels]
    lowest = min(0.0, *values) if chart.from_zero else min(values)
    y_ticks = ticks(*_widened(lowest, max(values)), count=max(4, height // 50))
    labels = [chart.format_y(tick) for tick in y_ticks]
    frame = _Frame(
        left=14 + 7.2 * max(len(label) for label in labels),
        right=width - 14,
        top=30,
        bottom=height - 44,
        x_range=x_range,
        y_range=(min(y_ticks[0], lowest), max(y_ticks[-1], *values)),
    )
    parts = [
        *_y_axis(frame, y_ticks, labels),
        *_x_axis(frame, chart.x_label, height, count=max(4, width // 90)),
        f'<text class="unit" x="0" y="12">{escape(chart.unit)}</text>',
        *_marks(frame, chart.marks),
        *(_level(frame, level, chart.series) for level in chart.levels),
        *(_line(frame, series) for series in chart.series),
    ]
    return (
        f'<svg class="chart {style}" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(chart.title)}" '
        f'data-hover="{escape(_hover(frame, chart), quote=True)}">{"".join(parts)}'
        '<g class="cursor"></g></svg>'
    )


def ticks(low: float, high: float, *, count: int) -> list[float]:
    """About `count` round values that enclose [low, high], spaced 1, 2, 2.5 or 5 times a power of ten."""
    rough = (high - low) / max(1, count - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    # Rounded: 3 * 0.1 must not show as 0.30000000000000004.
    places = max(0, 2 - math.floor(math.log10(step)))
    return [round(index * step, places) for index in range(first, last + 1)]


def smooth(points: Sequence[Point], *, window: int) -> list[Point]:
    """Each point's value replaced by the mean of the `window` points around it, fewer at the ends."""
    before = [0.0]
    for _, y in points:
        before.append(before[-1] + y)
    half = window // 2
    smoothed = []
    for index, (x, _) in enumerate(points):
        reach = min(half, index, len(points) - 1 - index)
        low, high = index - reach, index + reach + 1
        smoothed.append((x, (before[high] - before[low]) / (high - low)))
    return smoothed


def thin(points: Sequence[Point], *, limit: int = _MAX_POINTS) -> list[Point]:
    """At most about `limit` points: of each run of neighbours the lowest and the highest, so no spike gets lost."""
    if len(points) <= limit:
        return list(points)
    bins = limit // 2
    kept: list[Point] = []
    for number in range(bins):
        part = points[number * len(points) // bins : (number + 1) * len(points) // bins]
        extremes = {min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])}
        kept.extend(sorted(extremes))
    return kept


def _widened(low: float, high: float) -> tuple[float, float]:
    if high > low:
        return low, high
    margin = abs(low) * 0.1 or 1.0
    return low - margin, high + margin


def _y_axis(frame: _Frame, values: list[float], labels: list[str]) -> list[str]:
    return [
        f'<line class="grid" x1="{frame.left:.1f}" x2="{frame.right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="tick" x="{frame.left - 8:.1f}" y="{y + 4:.1f}" text-anchor="end">{escape(label)}</text>'
        for y, label in zip((frame.y(value) for value in values), labels, strict=True)
    ]


def _x_axis(frame: _Frame, label: str, height: int, *, count: int) -> list[str]:
    low, high = frame.x_range
    inside = [tick for tick in ticks(low, high, count=count) if low <= tick <= high and tick == int(tick)]
    parts = [
        f'<line class="axis" x1="{frame.left:.1f}" x2="{frame.right:.1f}" y1="{frame.bottom}" y2="{frame.bottom}"/>'
    ]
    for tick in inside:
        x = frame.x(tick)
        anchor = "end" if x > frame.right - 16 else "middle"
        parts.append(
            f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{frame.bottom}" y2="{frame.bottom + 4}"/>'
            f'<text class="tick" x="{x:.1f}" y="{frame.bottom + 18}" text-anchor="{anchor}">{tick:,.0f}</text>'
        )
    middle = (frame.left + frame.right) / 2
    parts.append(f'<text class="label" x="{middle:.1f}" y="{height - 6}" text-anchor="middle">{escape(label)}</text>')
    return parts


def _marks(frame: _Frame, marks: Sequence[Mark]) -> list[str]:
    parts = []
    free_from = 0.0
    for mark in marks:
        x = frame.x(mark.x)
        parts.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{frame.top}" y2="{frame.bottom}"/>')
        # Labels that would lie over each other are left out; the lines stay.
        width = 6.4 * len(mark.label)
        begin = x + 5 if x + 5 + width < frame.right else x - 5 - width
        if begin >= free_from:
            parts.append(f'<text class="mark-label" x="{begin:.1f}" y="{frame.top + 10}">{escape(mark.label)}</text>')
            free_from = begin + width + 8
    return parts


def _level(frame: _Frame, level: Level, series: Sequence[Series]) -> str:
    y, left, right = frame.y(level.y), frame.left, frame.right
    x, below = _free_place(frame, y, width=6.8 * len(level.label), series=series)
    return (
        f'<line class="level" x1="{left:.1f}" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="level-label" x="{x:.1f}" y="{y + 15 if below else y - 6:.1f}">{escape(level.label)}</text>'
    )


def _free_place(frame: _Frame, y: float, *, width: float, series: Sequence[Series]) -> tuple[float, bool]:
    """Where a label `width` wide at the line `y` covers the fewest points: its left end, and whether it lies below."""
    drawn = [(frame.x(px), frame.y(py)) for each in series for px, py in each.points]

    def covered(place: tuple[float, bool]) -> int:
        x, below = place
        top, bottom = (y, y + 20) if below else (y - 20, y)
        return sum(x - 6 <= px <= x + width + 6 and top <= py <= bottom for px, py in drawn)

    sides = (frame.right - 4 - width, (frame.left + frame.right - width) / 2, frame.left + 6)
    heights = [below for below in (True, False) if frame.top <= y + (20 if below else -20) <= frame.bottom]
    return min(((x, below) for x in sides for below in heights or [True]), key=covered)


def _line(frame: _Frame, series: Series) -> str:
    points = thin(series.points)
    if len(points) == 1:
        x, y = points[0]
        return f'<circle class="dot {series.style}" cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="3.5"/>'
    path = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in points)
    return f'<polyline class="line {series.style}" points="{path}"/>'


def _hover(frame: _Frame, chart: Chart) -> str:
    """What the page's script shows under the pointer: the last series' points as (x, y, text) on the drawing."""
    series = chart.series[-1]
    points = [
        (round(frame.x(x), 1), round(frame.y(y), 1), f"step {x:,.0f}: {chart.format_y(y)} {chart.unit}".rstrip())
        for x, y in thin(series.points, limit=_MAX_POINTS // 2)
    ]
    return json.dumps({"top": frame.top, "bottom": frame.bottom, "points": points}, separators=(",", ":"))
