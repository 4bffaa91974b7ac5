"""What a drill found, as names and values to print, and as a line of a history. Called by the command."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from shardline.components.common.streams import jsonable, now

_KEPT = ("run", "seed", "every", "steps", "anew", "seconds", "kinds", "losses", "problems", "lost", "held")


def rows(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A line for each fault, for each kind, and for the verdict."""
    table = [(f"fault {each['number']}", _fault(each)) for each in found["faults"]]
    table += [(kind, _figures(each)) for kind, each in found["kinds"].items()]
    table.append(("all", _figures(found["seconds"])))
    table.append(("done again", f"{found['anew']:,} optimizer steps, of {found['steps']:,} that are saved"))
    table.append(
        ("samples", "exact: none lost, none repeated" if not found["samples"] else "; ".join(found["samples"]))
    )
    table.append(("losses", _losses(found["losses"])))
    table.append(("run", f"{found['run']}, seed {found['seed']}"))
    return table


def append(path: str, found: Mapping[str, Any]) -> None:
    """Add a line for this drill to the file at `path`."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    line = {"time": now(), "faults": len(found["faults"]), **{key: found[key] for key in _KEPT}}
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(jsonable(line), ensure_ascii=False) + "\n")


def _fault(each: Mapping[str, Any]) -> str:
    if each["seconds"] is None:
        return f"{each['victim']}: no step was finished after it"
    time = "as the one before" if each["shared"] else f"{each['seconds']:.1f} s without a finished step"
    return f"{each['victim']}: {time}, {each['anew']:,} done again"


def _figures(each: Mapping[str, Any]) -> str:
    if not each["count"]:
        return "no time of its own"
    return (
        f"without a finished step: p50 {each['p50']:.1f} s, p95 {each['p95']:.1f} s, the first {each['first']:.1f} s, "
        f"the longest {each['longest']:.1f} s, of {each['count']}"
    )


def _losses(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "not compared: --baseline trains undisturbed runs to compare with"
    return f"{found['difference']:.3g} from an undisturbed run's at most; {found['bound']:.3g} is allowed"
