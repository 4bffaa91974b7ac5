"""What `shardline checkpoint` shows of checkpoints, as names and values to print. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardline.components.planning.layout import Layout
from shardline.pipelines.progress import size

Rows = list[tuple[str, str]]
Facts = Mapping[str, Any]


def list_rows(found: list[dict[str, Any]]) -> Rows:
    """A line for each checkpoint, and one for what does not count."""
    return [_row(each) for each in found]


def _row(each: Facts) -> tuple[str, str]:
    if not each["counts"]:
        return str(each["folder"]).rpartition("/")[2], f"does not count: {each['reason']}"
    parts = [size(each["bytes"]), f"generation {each['generation']}"]
    parts += [str(each["time"])] if each["time"] else []
    parts += [f"loss {each['loss']:.3f}"] if isinstance(each["loss"], int | float) else []
    parts += ["pinned"] if each["pinned"] else []
    return f"step {each['step']:,}", ", ".join(parts)


def info_rows(found: Facts) -> Rows:
    """What is in one checkpoint: tensors of the model first, then how many others."""
    tensors: Mapping[str, Facts] = found["tensors"]
    model = {name: entry for name, entry in tensors.items() if name.startswith("model.")}
    others = {name: entry for name, entry in tensors.items() if name not in model}
    rows = [
        _row({**found, "counts": True}),
        ("trained", f"{found['updates']:,} updates, {found['tokens']:,} target tokens"),
        ("data position", f"{found['position']:,}"),
        ("saved under", _layout(found["layout"])),
        ("identity", str(found["identity"])),
        ("files", f"{found['files']:,}, {size(found['bytes'])}"),
        ("folder", str(found["folder"])),
    ]
    rows += [(name, _tensor(entry)) for name, entry in model.items()]
    total = sum(int(entry["bytes"]) for entry in others.values())
    return [*rows, ("of the optimizer", f"{len(others):,} tensors, {size(total)}")]


def _layout(layout: Facts) -> str:
    try:
        return str(Layout.from_json(dict(layout)))
    except TypeError:
        return str(dict(layout))  # of a version with other axes


def _tensor(entry: Facts) -> str:
    shape = " x ".join(f"{side:,}" for side in entry["shape"]) or "a number"
    return f"{shape}, {entry['dtype']}, {size(entry['bytes'])}"
