from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.components.monitoring.charts import Chart, Level, Mark, Series, render, smooth, thin, ticks
from shardline.components.monitoring.numbers import count, decimal, duration, size


@given(
    low=st.floats(-1e9, 1e9),
    span=st.floats(1e-3, 1e9),
    wanted=st.integers(3, 12),
)
def test_ticks_enclose_the_data_and_are_few(low: float, span: float, wanted: int) -> None:
    found = ticks(low, low + span, count=wanted)
    step = found[1] - found[0]
    assert found == sorted(set(found))
    assert found[0] <= low + step * 1e-6 and found[-1] >= low + span - step * 1e-6
    assert 2 <= len(found) <= wanted + 2


def test_ticks_are_round() -> None:
    assert ticks(0.1, 0.9, count=5) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert ticks(3.02, 8.3, count=4) == [2.0, 4.0, 6.0, 8.0, 10.0]


def test_smoothing_keeps_a_line_and_its_ends() -> None:
    line = [(float(x), 2.0 * x) for x in range(20)]
    assert [x for x, _ in smooth(line, window=7)] == [x for x, _ in line]
    assert [y for _, y in smooth(line, window=7)] == pytest.approx([y for _, y in line])
    spike = [(float(x), 9.0 if x == 5 else 0.0) for x in range(11)]
    assert smooth(spike, window=3)[4:7] == [(4.0, 3.0), (5.0, 3.0), (6.0, 3.0)]


def test_thinning_keeps_spikes_and_order() -> None:
    points = [(float(x), 100.0 if x == 4321 else 0.1 * (x % 7)) for x in range(10_000)]
    thinned = thin(points, limit=600)
    assert len(thinned) <= 600
    assert (4321.0, 100.0) in thinned
    assert thinned == sorted(thinned)


@pytest.mark.parametrize("points", [[(1.0, 2.0)], [(1.0, 2.0), (2.0, 2.0)], [(1.0, 0.0), (2.0, 0.0)], [(5.0, -1.0)]])
def test_flat_and_single_points_are_drawn(points: list[tuple[float, float]]) -> None:
    drawn = render(
        Chart(title="t", unit="u", series=[Series(label="l", style="s", points=points)]), width=400, height=200
    )
    ElementTree.fromstring(drawn)
    assert "nan" not in drawn and "inf" not in drawn


def test_everything_lies_within_the_drawing_and_text_is_escaped() -> None:
    chart = Chart(
        title='a "title" & <more>',
        unit="<unit>",
        series=[Series(label="l", style="s", points=[(float(x), (x - 40.0) ** 2) for x in range(100)])],
        marks=[Mark(x=99, label="<mark>"), Mark(x=2, label="early")],
        levels=[Level(y=5000, label="far above")],
    )
    root = ElementTree.fromstring(render(chart, width=400, height=200))
    assert root.attrib["aria-label"] == 'a "title" & <more>'
    for element in root.iter():
        for name, limit in (("x", 400), ("x1", 400), ("x2", 400), ("y", 200), ("y1", 200), ("y2", 200)):
            if name in element.attrib:
                assert 0 <= float(element.attrib[name]) <= limit, (element.tag, element.attrib)
    coordinates = [float(part) for part in re.split("[ ,]", root.findall("polyline")[0].attrib["points"])]
    assert max(coordinates[::2]) <= 400 and max(coordinates[1::2]) <= 200 and min(coordinates) >= 0


@pytest.mark.parametrize("falling", [True, False])
def test_a_levels_label_does_not_lie_on_the_curve(falling: bool) -> None:
    # Flat for most of its length, as a loss is, just where the level is.
    values = [3 + 5 * math.exp(-step / 20) for step in range(240)]
    points = [(float(x), y) for x, y in enumerate(values if falling else reversed(values))]
    series = [Series(label="l", style="smooth", points=points)]
    root = ElementTree.fromstring(
        render(
            Chart(title="t", unit="u", series=series, levels=[Level(y=3.1, label="held-out 3.100")]),
            width=1000,
            height=320,
        )
    )
    (label,) = [element for element in root.iter("text") if element.attrib["class"] == "level-label"]
    x, y = float(label.attrib["x"]), float(label.attrib["y"])
    line = [tuple(map(float, pair.split(","))) for pair in root.findall("polyline")[0].attrib["points"].split()]
    assert not [point for point in line if x <= point[0] <= x + 90 and y - 11 <= point[1] <= y + 3]


def test_nothing_to_draw_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        render(Chart(title="t", unit="u", series=[]), width=400, height=200)


def test_numbers() -> None:
    assert [count(v) for v in (0, 999, 1000, 12_345, 999_960, 8_030_000_000, 0.5)] == [
        "0",
        "999",
        "1.00 k",
        "12.3 k",
        "1.00 M",
        "8.03 B",
        "0.50",
    ]
    assert [size(v) for v in (12, 2048, 1 << 20, 5 << 30)] == ["12 B", "2.00 KiB", "1.00 MiB", "5.00 GiB"]
    assert [duration(v) for v in (0.42, 12.34, 59.99, 245, 11_220, 187_200)] == [
        "0.42 s",
        "12.3 s",
        "1 min 00 s",
        "4 min 05 s",
        "3 h 07 min",
        "2 d 04 h",
    ]
    assert [decimal(v) for v in (1.23456, "inf", None)] == ["1.235", "inf", "–"]
