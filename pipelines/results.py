"""What the pipeline's steps have produced, as names and values to print. Pure: their results in, text out.

Called by the command of each step, and by `summary` for a run as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardline.components.planning.layout import Layout
from shardline.pipelines.progress import duration, size

Result = Mapping[str, Any]
Rows = list[tuple[str, str]]

_ALTERNATIVES = 2


def dataset(facts: Result) -> Rows:
    """Of the shard step."""
    return [
        ("data set", dataset_line(facts) or ""),
        ("held out", dataset_line(facts["held_out"]) or ""),
        ("left out", f"{facts['skipped']:,} skipped, {facts['near_duplicates']:,} like held-out documents"),
        ("vocabulary", f"{facts['vocab']:,} tokens"),
        ("shards", f"{facts['shards']:,}, {size(facts['shard_bytes'])}"),
        ("fingerprint", str(facts["fingerprint"])),
        ("folder", str(facts["url"])),
    ]


def plan(planned: Result) -> Rows:
    """Of the plan step: the layout that was chosen, and the next best ones."""
    chosen, *others = planned["candidates"]
    return [
        ("layout", _layout(chosen)),
        ("why", str(planned["reason"])),
        *(("or", _layout(other)) for other in others[:_ALTERNATIVES]),
        ("processes", f"{planned['processes']:,} ({planned['processes_from']})"),
        ("model", f"{planned['parameters']:,} parameters"),
        ("training", f"{planned['tokens']:,} tokens, {planned['tokens_per_step']:,} in an optimizer step"),
    ]


def _layout(candidate: Result) -> str:
    idle = 1 - candidate["efficiency"]
    layout = Layout.from_json(candidate["layout"])
    return f"{layout}: {idle:.0%} idle, {size(candidate['memory_bytes'])} a process"


def training(trained: Result) -> Rows:
    """Of the train step."""
    return [
        ("training", f"step {trained['step']:,}, {trained['tokens']:,} tokens"),
        ("loss", _loss(trained["loss"])),
        ("checkpoint", str(trained["checkpoint"])),
    ]


def evaluation(result: Result, *, model: str | None) -> Rows:
    """Of the evaluate step; `model` is the URL of the exported model, where there is one."""
    return [
        *held_out(result),
        ("loss", f"{_number(result['loss'])} nats per token, perplexity {_number(result['perplexity'])}"),
        ("text", f"{result['documents']:,} documents, {result['tokens']:,} tokens, {size(result['bytes'])}"),
        *(("sample", f"{sample['prompt']}{sample['text']}".replace("\n", "\\n")) for sample in result["samples"]),
        *([("model", model)] if model else []),
    ]


def held_out(result: Result) -> Rows:
    """What an evaluation measured, what is to be said of it, and the gate's verdict."""
    bits = result["bits_per_byte"]
    if bits is None:
        return [("held-out", f"nothing is held out (step {result['step']:,})"), *_gate(result)]
    others = {"gzip_9": "gzip -9", "xz": "xz"}
    compressors = result.get("compressors") or {}
    beside = ", ".join(f"{name} {_number(compressors[key])}" for key, name in others.items() if key in compressors)
    text = f"{_number(bits)} bits per byte at step {result['step']:,}"
    rows = [("held-out", f"{text} ({beside})" if beside else text)]
    if rough := result.get("rough"):
        rows.append(("note", str(rough)))
    return rows + _gate(result)


def _gate(result: Result) -> Rows:
    gate = result["gate"]
    if gate["passed"] and gate["max_bits_per_byte"] is None:
        return []
    return [("gate", f"{'passed' if gate['passed'] else 'refused'}: {gate['reason']}")]


def dataset_line(data: Result | None) -> str | None:
    """A data set, or a split of it, in one line."""
    if not data:
        return None
    parts = [f"{data[key]:,} {key}" for key in ("documents", "tokens", "blocks") if isinstance(data.get(key), int)]
    if isinstance(data.get("bytes"), int):
        parts.append(size(data["bytes"]))
    return ", ".join(parts) or None


def training_line(trained: Result | None) -> str | None:
    """How far training is, in one line."""
    if not trained:
        return None
    step, steps = trained["step"], trained["steps"]
    parts = [f"step {step:,} of {steps:,}" if step <= steps else f"step {step:,}", f"loss {_loss(trained['loss'])}"]
    if trained["tokens_per_second"]:
        parts.append(f"{trained['tokens_per_second']:,.0f} tokens/s over {duration(trained['seconds'])}")
    return ", ".join(parts)


def _loss(value: float | None) -> str:
    return f"{value:.3f} (mean of the last steps)" if value is not None else "not finite"


def _number(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
