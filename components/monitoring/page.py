"""The report as one HTML page. Pure: records in, text out. Nothing it shows is loaded from elsewhere.

All text that comes from the run (names, samples, errors, events) is escaped here, where it enters the page.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from importlib import resources
from typing import Any

from shardline.components.monitoring import sections
from shardline.components.monitoring.charts import Chart, Level, Mark, Series, render, smooth
from shardline.components.monitoring.numbers import clock, count, decimal, duration, finite
from shardline.components.monitoring.records import Records

#: The wordmark's picture: a bar cut into shards.
_LOGO = (
    '<svg viewBox="0 0 20 20" aria-hidden="true"><path d="M1 5h4L3 15H1z"/><path d="M7 5h4.5l-2 10H5z" opacity=".75"/>'
    '<path d="M13.5 5H19v10h-7.5z" opacity=".5"/></svg>'
)
_COMPRESSORS = {"gzip_9": "gzip -9", "xz": "xz"}
#: The smoothed line is the mean over this share of the steps.
_SMOOTHED_SHARE = 0.04


def page(records: Records, *, written: str, version: str) -> str:
    """The whole document.

    Args:
        written: when, as RFC 3339.
        version: that of shardline.
    """
    body = "\n".join(
        [
            _header(records),
            sections.failures(records),
            f'<div class="top">{_quality(records)}{_tiles(records)}</div>',
            _loss(records),
            _small_charts(records),
            f'<div class="two">{sections.dataset(records)}{sections.layout(records)}</div>',
            sections.samples(records),
            sections.checkpoints(records),
            sections.events(records),
            sections.config(records),
            f"<footer>Written {escape(clock(written))} UTC by shardline {escape(version)}.</footer>",
        ]
    )
    title = escape(f"{records.config.run} · shardline")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{_beside('page.css')}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n"
        f"<script>{_beside('page.js')}</script>\n</body>\n</html>\n"
    )


def _beside(name: str) -> str:
    return resources.files("shardline.components.monitoring").joinpath(name).read_text(encoding="utf-8")


def _header(records: Records) -> str:
    words, kind = records.state()
    facts = [f"{escape(records.url)}"]
    if records.events:
        facts.insert(0, f"Began {clock(records.events[0]['time'])} UTC")
    return (
        f'<header><div class="brand">{_LOGO}shardline</div><h1>{escape(records.config.run)}</h1>'
        f'<span class="chip {kind}">{escape(words)}</span>{_gate(records.evaluation)}'
        f'<div class="facts">{" · ".join(facts)}</div></header>'
    )


def _gate(evaluation: dict[str, Any] | None) -> str:
    if not evaluation or evaluation["gate"].get("max_bits_per_byte") is None:
        return ""
    passed = evaluation["gate"]["passed"]
    word, kind = ("passed", "good") if passed else ("refused", "bad")
    return f'<span class="chip {kind}">gate {word}</span>'


def _quality(records: Records) -> str:
    heading = "<h2>Held-out text</h2>"
    evaluation = records.evaluation
    if not evaluation:
        return f'<section class="card">{heading}<p class="missing">Not evaluated yet.</p></section>'
    model = evaluation["bits_per_byte"]
    if model is None:
        return f'<section class="card">{heading}<p class="missing">No text was held out of training.</p></section>'
    rows = [("this model", model, "model")]
    rows += [(label, (evaluation["compressors"] or {}).get(name), "") for name, label in _COMPRESSORS.items()]
    bars = [(label, value, style) for label, number, style in rows if (value := finite(number)) is not None]
    largest = max((value for _, value, _ in bars), default=1.0)
    # 78 % leaves room for the number to the right of the longest bar.
    drawn = "".join(
        f'<span>{label}</span><span class="track"><span class="bar {style}" style="width:{78 * value / largest:.1f}%">'
        f"</span>{value:.3f}</span>"
        for label, value, style in bars
    )
    return (
        f'<section class="card">{heading}<div class="number">{escape(decimal(model))}<small>bits per byte</small></div>'
        f'<div class="bars">{drawn}</div><p class="note">{_comparison(evaluation)}</p></section>'
    )


def _comparison(evaluation: dict[str, Any]) -> str:
    text = (
        f"Lower is better. {count(evaluation['bytes'])}B of text that the model has not seen, "
        f"after {evaluation['step']:,} optimizer steps."
    )
    if evaluation.get("decoded") and not evaluation["decoded"]["lossless"]:
        decoded = count(evaluation["decoded"]["bytes"])
        text += f" The tokenizer does not give every byte back: the compressors had {decoded}B."
    if rough := evaluation.get("rough"):
        text += f" {escape(rough[0].upper() + rough[1:])}."
    verdict = evaluation["gate"]
    return text if verdict.get("max_bits_per_byte") is None else f"{text} The gate: {escape(verdict['reason'])}."


def _tiles(records: Records) -> str:
    evaluation, shape, steps = records.evaluation, records.shape, records.config.training.steps
    throughput, wall = records.throughput, records.wall_seconds
    epochs = ""
    if records.manifest and records.manifest["train"]["tokens"]:
        epochs = f"{records.tokens / records.manifest['train']['tokens']:.2f} times the training text"
    tiles = [
        (
            "Held-out loss",
            decimal(evaluation["loss"]) if evaluation else "–",
            f"nats per token, perplexity {decimal(evaluation['perplexity'], places=1)}" if evaluation else "",
        ),
        ("Parameters", count(shape.parameters), f"{shape.layers} layers of width {shape.dim:,}"),
        ("Tokens trained on", count(records.tokens) if records.metrics else "–", epochs),
        ("Throughput", count(throughput) if throughput else "–", "tokens a second, median"),
        (
            "Optimizer steps",
            f"{records.steps_done:,}",
            (f"of {steps:,}, " if records.steps_done <= steps else "")
            + f"{records.config.training.global_batch:,} samples each",
        ),
        (
            "Wall time",
            duration(wall) if wall is not None else "–",
            f"{duration(records.training_seconds)} of it in steps" if records.metrics else "",
        ),
    ]
    inner = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd><dd>{escape(note)}</dd></div>"
        for name, value, note in tiles
    )
    return f'<dl class="card tiles">{inner}</dl>'


def _loss(records: Records) -> str:
    heading = "<h2>Training loss</h2>"
    points = records.values("loss")
    if not points:
        text = "No metrics yet: training has not finished a step." if not records.metrics else "The loss is not finite."
        return f'<section class="card">{heading}<p class="missing">{text}</p></section>'
    window = max(1, int(len(points) * _SMOOTHED_SHARE)) | 1
    series = [Series(label="each step", style="raw" if window > 1 else "smooth", points=points)]
    legend = [("raw", "each step")]
    if window > 1:
        series.append(Series(label="mean", style="smooth", points=smooth(points, window=window)))
        legend.append(("smooth", f"mean of {window} steps"))
    levels = []
    held_out = finite(records.evaluation["loss"]) if records.evaluation else None
    if held_out is not None:
        levels.append(Level(y=held_out, label=f"held-out {held_out:.3f}"))
        legend.append(("dashed", "held-out loss"))
    marks = [Mark(x=step, label=f"generation {generation}") for step, generation in records.resumptions()]
    if marks:
        legend.append(("upright", "gone on with another group of workers"))
    chart = Chart(
        title="Training loss by optimizer step",
        unit="nats per token",
        series=series,
        marks=marks,
        levels=levels,
        format_y=_significant,
    )
    return f'<section class="card">{heading}{_legend(legend)}{_both(chart)}</section>'


def _legend(entries: Iterable[tuple[str, str]]) -> str:
    return (
        '<div class="legend">' + "".join(f'<span><i class="{k}"></i>{escape(t)}</span>' for k, t in entries) + "</div>"
    )


def _both(chart: Chart) -> str:
    # Text in a drawing shrinks with it: a phone gets a drawing of its own width.
    return render(chart, width=1000, height=320, style="wide") + render(chart, width=400, height=270, style="narrow")


def _small_charts(records: Records) -> str:
    wanted = (
        ("tokens_per_second", "Throughput", "tokens a second", True, _brief),
        ("lr", "Learning rate", "", True, "{:.3g}".format),
        ("grad_norm", "Gradient norm", "before clipping", True, _significant),
        ("seconds", "Time of a step", "seconds", True, _significant),
    )
    cards = []
    for key, title, unit, from_zero, format_y in wanted:
        points = records.values(key)
        if points:
            chart = Chart(
                title=title,
                unit=unit,
                series=[Series(label=title, style="smooth", points=points)],
                from_zero=from_zero,
                format_y=format_y,
            )
            cards.append(f'<section class="card"><h2>{title}</h2>{render(chart, width=430, height=220)}</section>')
    return f'<div class="two">{"".join(cards)}</div>' if cards else ""


def _brief(value: float) -> str:
    """As `count`, on an axis: 20 k instead of 20.0 k."""
    number, _, prefix = count(value).partition(" ")
    number = number.rstrip("0").rstrip(".") if "." in number else number
    return f"{number} {prefix}".rstrip()


def _significant(value: float) -> str:
    return f"{value:.4g}"
