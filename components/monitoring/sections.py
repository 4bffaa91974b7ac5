"""The report's sections below the charts. Pure: records in, HTML out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from shardline.components.common import config as configs
from shardline.components.common.config.data_schema import Corpus
from shardline.components.monitoring.numbers import clock, count, duration, size
from shardline.components.monitoring.records import Records

#: A run of weeks has more events than anyone reads on a page; the stream in the run folder has all.
_FIRST_EVENTS, _LAST_EVENTS = 50, 250
_LONGEST_VALUE = 160
_MOST_RANKS = 64


def failures(records: Records) -> str:
    """What ended a step, if one ended badly."""
    cards = [
        f'<section class="card"><h2>Step {escape(step)} failed</h2><pre>{escape(str(error.get("message", "")))}</pre>'
        f'<p class="note">Exit code {escape(str(error.get("exit_code", "")))}. '
        "The same command again goes on from where it was.</p></section>"
        for step, error in sorted(records.errors.items())
    ]
    return "".join(cards)


def dataset(records: Records) -> str:
    manifest = records.manifest
    if not manifest:
        return _card("Data set", '<p class="missing">Not written yet.</p>')
    train, held_out = manifest["train"], manifest["held_out"]
    head = "<thead><tr><th></th><th class=n>training</th><th class=n>held out</th></tr></thead>"
    lines = [
        ("Documents", f"{train['documents']:,}", f"{held_out['documents']:,}"),
        ("Text", size(train["bytes"]), size(held_out["bytes"])),
        ("Tokens", count(train["tokens"]), count(held_out["tokens"])),
        ("Blocks", f"{train['blocks']:,}", f"{held_out['blocks']:,}"),
        ("Bytes per token", _ratio(train["bytes"], train["tokens"]), _ratio(held_out["bytes"], held_out["tokens"])),
        ("Shards", f"{len(train['shards']):,}", f"{len(held_out['shards']):,}"),
    ]
    rows = "".join(
        f"<tr><th>{name}</th><td class=n>{left}</td><td class=n>{right}</td></tr>" for name, left, right in lines
    )
    stored = sum(shard["size"] for split in (train, held_out) for shard in split["shards"])
    facts = [
        ("Corpus", escape(_corpus(records.config.corpus))),
        ("Files", f"{manifest['files']['count']:,}"),
        ("Size of the shards", f"{size(stored)}, {_ratio(stored, train['bytes'] + held_out['bytes'], 0)} of the text"),
        ("Left out", _left_out(manifest["near_duplicates"], "near-duplicates of held-out documents")),
        ("Skipped", _left_out(manifest["skipped"], "documents")),
        ("Vocabulary", f"{manifest['vocab']:,} tokens"),
        ("Fingerprint", f"<code>{escape(manifest['fingerprint'])}</code>"),
    ]
    return _card("Data set", f"<table>{head}<tbody>{rows}</tbody></table>{_facts(facts)}")


def _corpus(corpus: Corpus) -> str:
    named = [f"{name}: {', '.join(source.urls)}" for name, source in corpus.sources.items()]
    return "; ".join([", ".join(corpus.urls or []), *named] if corpus.urls else named)


def _ratio(value: float, total: float, places: int = 2) -> str:
    if not total:
        return "–"
    return f"{value / total:.{places}f}" if places else f"{value / total:.0%}"


def _left_out(skips: Mapping[str, Any], what: str) -> str:
    if not skips["documents"]:
        return f"no {escape(what)}"
    reasons = ", ".join(f"{reason}: {number:,}" for reason, number in skips["reasons"].items())
    first = ", ".join(skips["first"][:3])
    text = f"{skips['documents']:,} {escape(what)} ({size(skips['bytes'])})"
    text += f'<br><span class="reason">{escape(reasons)}</span>' if len(skips["reasons"]) > 1 else ""
    return text + (f'<br><span class="reason">such as {escape(first)}</span>' if first else "")


def layout(records: Records) -> str:
    chosen = records.named("layout.chosen")
    source = {**chosen[-1]["data"], "reason": chosen[-1].get("reason")} if chosen else records.plan
    if not source:
        return _card("Layout", '<p class="missing">Not chosen yet.</p>')
    axes = source["layout"]
    pp, shared = axes["pp"], axes.get("tp", 1) * axes.get("cp", 1)
    across = axes["dp_replicate"] * axes["dp_shard"] * shared
    training, model = records.config.training, records.shape
    facts = [
        ("Processes", f"{across * pp:,}"),
        ("Data parallel", _times(axes, dp_replicate="replica", dp_shard="shard")),
        ("Model and sample", _times(axes, tp="tensor rank", cp="context rank") if shared > 1 else "whole on each rank"),
        (
            "Pipeline",
            f"{_times(axes, pp='rank', stages_per_rank='stage')}, {escape(axes['schedule'])}" if pp > 1 else "none",
        ),
        ("Global batch", f"{training.global_batch:,} samples in microbatches of {training.microbatch:,}"),
        ("Sample", f"{training.sequence:,} tokens"),
        ("Precision", escape(training.precision)),
        (
            "Model",
            f"{escape(records.config.model.url or records.config.model.preset)}: {model.layers} layers, "
            f"{model.heads} heads ({model.kv_heads} KV)",
        ),
        ("Why", escape(str(source.get("reason") or "")) or "–"),
    ]
    changes = "" if len(chosen) < 2 else f'<p class="note">Chosen {len(chosen)} times; this is the last one.</p>'
    return _card("Layout", _facts(facts) + _ranks(pp, across) + changes)


def _times(axes: Mapping[str, Any], **names: str) -> str:
    """Axes and what one of each is called, as `2 ranks × 1 stage`; those of size 1 are left out where others aren't."""
    sizes = {name: axes[axis] for axis, name in names.items()}
    shown = {name: number for name, number in sizes.items() if number > 1} or sizes
    return " × ".join(f"{number:,} {name}{'s' if number > 1 else ''}" for name, number in shown.items())


def _ranks(pp: int, across: int) -> str:
    if pp * across > _MOST_RANKS:
        return ""
    cells = "".join(f"<span>rank {rank}</span>" for rank in range(pp * across))
    caption = "Pipeline ranks from top to bottom, the ranks of a stage from left to right."
    return (
        f'<div class="ranks" style="grid-template-columns:repeat({across},minmax(0,1fr))">{cells}</div>'
        f'<p class="note">{caption}</p>'
    )


def samples(records: Records) -> str:
    title = "What the model writes"
    if not records.evaluation:
        return _card(title, '<p class="missing">Not evaluated yet.</p>')
    shown = "".join(
        f'<pre class="sample"><b>{escape(sample["prompt"])}</b>{escape(sample["text"])}</pre>'
        for sample in records.evaluation["samples"]
    )
    temperature = records.evaluation["settings"]["temperature"]
    notes = [f"Prompts in colour, sampled at a temperature of {temperature:g}."] if shown else []
    if records.exported:
        total = sum(file["size"] for file in records.exported["files"].values())
        notes.append(f"The model as a Hugging Face folder: <code>{escape(records.url)}/model</code> ({size(total)}).")
    return _card(title, f'{shown}<p class="note">{" ".join(notes)}</p>') if notes else ""


def checkpoints(records: Records) -> str:
    saved = records.named("checkpoint.committed")
    if not saved:
        return _card("Checkpoints", '<p class="missing">None yet.</p>')
    # A step that was saved again, by a later generation, is in the list once: the newest counts.
    gone = {event["data"]["step"]: "removed" for event in records.named("checkpoint.pruned")}
    for event in records.named("checkpoint.damaged"):
        gone[_step_of(event["data"])] = "damaged, put aside"
    newest = {event["data"]["step"]: event for event in saved}
    rows = []
    for step in sorted(newest, reverse=True)[:20]:
        event = newest[step]
        data = event["data"]
        used = [
            size(data["bytes"]) if "bytes" in data else "–",
            duration(data["seconds"]) if "seconds" in data else "–",
            f"{data['blocked_seconds']:.2f} s" if "blocked_seconds" in data else "–",
        ]
        rows.append(
            f"<tr><td class=n>{step:,}</td><td class=n>{used[0]}</td><td class=n>{used[1]}</td>"
            f"<td class=n>{used[2]}</td>"
            f'<td class=n>{event["generation"]}</td><td class="time">{clock(event["time"])}</td>'
            f'<td class="reason">{gone.get(step) or escape(event.get("reason") or "")}</td></tr>'
        )
    head = (
        "<thead><tr><th class=n>step</th><th class=n>size</th><th class=n>saved in</th><th class=n>stood still</th>"
        "<th class=n>generation</th>"
        '<th class="time">time (UTC)</th><th></th></tr></thead>'
    )
    more = f'<p class="note">And {len(newest) - 20} earlier ones.</p>' if len(newest) > 20 else ""
    return _card(
        "Checkpoints", f'<div class="wide-table"><table>{head}<tbody>{"".join(rows)}</tbody></table></div>{more}'
    )


def _step_of(data: Mapping[str, Any]) -> int:
    return int(data["step"]) if "step" in data else int(str(data.get("folder", "-0")).rpartition("-")[2])


def events(records: Records) -> str:
    if not records.events:
        return _card("Events", '<p class="missing">None yet.</p>')
    everything = records.events
    cut = len(everything) - _FIRST_EVENTS - _LAST_EVENTS
    if cut > 0:
        between = f'<tr><td colspan="3" class="reason">{cut:,} events left out; they are in the run folder.</td></tr>'
        rows = [*map(_event, everything[:_FIRST_EVENTS]), between, *map(_event, everything[-_LAST_EVENTS:])]
    else:
        rows = [_event(event) for event in everything]
    head = "<thead><tr><th>time (UTC)</th><th>event</th><th>what and why</th></tr></thead>"
    table = f'<div class="wide-table events"><table>{head}<tbody>{"".join(rows)}</tbody></table></div>'
    return _card("Events", table, style="long")


def _event(event: Mapping[str, Any]) -> str:
    bad = event["name"].rpartition(".")[2] in ("failed", "lost", "damaged")
    reason = event.get("reason")
    # A failed step's reason is its message; once is enough.
    skip = {"traceback", "message", "type", "reason"} if bad else {"candidates", "reason"}
    data = _pairs((key, value) for key, value in event["data"].items() if key not in skip)
    why = f'<div class="reason">{escape(reason)}</div>' if reason else ""
    style = "name bad" if bad else "name"
    return (
        f'<tr><td class="time">{clock(event["time"])}</td><td class="{style}">{escape(event["name"])}</td>'
        f"<td>{data}{why}</td></tr>"
    )


def _pairs(items: Iterable[tuple[str, Any]]) -> str:
    pairs = (
        f"<span><i>{escape(key.replace('_', ' '))}</i> {escape(_short(_value(key, value)))}</span>"
        for key, value in items
    )
    return f'<span class="pairs">{"".join(pairs)}</span>'


def _value(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        # "bits per byte" is no number of bytes.
        if key.endswith("bytes"):
            return size(value)
        if key.endswith("seconds"):
            return duration(value)
        return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name.replace('_', ' ')} {_value(name, item)}" for name, item in value.items())
    if isinstance(value, list):
        return ", ".join(_value("", item) for item in value)
    return "–" if value is None else str(value)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + "…"


def config(records: Records) -> str:
    text = escape(configs.dump(records.config))
    return f'<details class="card long"><summary>The run config, every key</summary><pre>{text}</pre></details>'


def _facts(facts: Iterable[tuple[str, str]]) -> str:
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{value}</td></tr>" for name, value in facts)
    return f'<table class="facts-table">{rows}</table>'


def _card(title: str, content: str, *, style: str = "") -> str:
    return f'<section class="card {style}"><h2>{escape(title)}</h2>{content}</section>'
