"""`shardline fork` and `shardline merge`: new runs from checkpoints of others."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardline.components.common.errors import UserError
from shardline.pipelines.cli.options import AsJson, Overrides, Root, Run, found_run
from shardline.pipelines.cli.output import note, print_json, print_table

if TYPE_CHECKING:
    from shardline.components.common.config import Loaded
    from shardline.components.training.start.making import Named

New = Annotated[str, typer.Argument(metavar="NEW", help="The name of the new run.", show_default=False)]
Overlay = Annotated[
    str | None, typer.Option("--config", metavar="FILE", help="A YAML file with the keys that are to be different.")
]
_INPUT = re.compile(r"(?P<run>.+?)(?:@(?P<step>\d+))?(?:=(?P<weight>[-+.0-9eE]+))?", re.DOTALL)
_TELL_SECONDS = 5.0


def fork(
    run: Run,
    new: New,
    step: Annotated[
        int | None, typer.Option("--step", min=1, help="From the checkpoint of this step, instead of the newest.")
    ] = None,
    overrides: Overrides = None,
    overlay: Overlay = None,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Begin a new run from a checkpoint of another.

    Weights, the optimizer's state, data position and data policy are those of the checkpoint; --set and --config say
    what is to be different from here on. RUN may be training meanwhile: it is only read. Called again, it ends the
    same.
    """
    from shardline.components.training.start.making import Named, config_from

    parent = Named(run=found_run(run, root), step=step)
    loaded = config_from([parent], name=new, overlay=overlay, overrides=overrides or (), root=_storage(root))
    _make(loaded, command="fork", as_json=as_json)


def merge(
    new: New,
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN[@STEP][=WEIGHT]...",
            help="A run, the step of its checkpoint (the newest unless given) and its weight (1 unless given).",
            show_default=False,
        ),
    ],
    position_of: Annotated[
        str | None,
        typer.Option(
            "--position-of",
            metavar="RUN[@STEP]",
            help="Go on from the step and the data position of this one, where they do not agree.",
        ),
    ] = None,
    overrides: Overrides = None,
    overlay: Overlay = None,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Begin a new run from the mean of checkpoints.

    Weights of the model and state of the optimizer are averaged; what each counts is its share of the sum of all
    weights. The checkpoints must agree on step, data position and data policy, or --position-of say whose they are.
    """
    parents = [_input(text, root) for text in runs]
    if len(parents) < 2:
        raise UserError(
            "a merge is of two checkpoints or more", where=" ".join(runs), hint="`shardline fork` takes one"
        )

    from shardline.components.training.start.making import config_from

    loaded = config_from(
        parents,
        name=new,
        position_of=None if position_of is None else _which(position_of, parents, root),
        overlay=overlay,
        overrides=overrides or (),
        root=_storage(root),
    )
    _make(loaded, command="merge", as_json=as_json)


def _storage(root: str | None) -> str | None:
    """Where the new run is to be, unless as its config says."""
    import os

    from shardline.components.common.config.load import ROOT_VARIABLE

    return root or os.environ.get(ROOT_VARIABLE)


def _input(text: str, root: str | None) -> Named:
    """RUN[@STEP][=WEIGHT] as it is meant.

    Raises:
        UserError: the weight is not a number above 0, or there is no such run.
    """
    from shardline.components.training.start.making import Named

    match = _INPUT.fullmatch(text)
    if match is None:
        raise UserError("is no run", where=repr(text), hint="give RUN, RUN@STEP, RUN=WEIGHT or RUN@STEP=WEIGHT")
    try:
        weight = float(match["weight"] or 1)
    except ValueError:
        weight = 0.0
    if not 0 < weight <= 1e9:
        raise UserError(f"the weight {match['weight']} is not a number above 0, up to 1e9", where=text)
    return Named(run=found_run(match["run"], root), step=int(match["step"]) if match["step"] else None, weight=weight)


def _which(text: str, parents: list[Named], root: str | None) -> int:
    """The number of the one of `parents` that --position-of names."""
    wanted = _input(text, root)
    found = [
        number
        for number, each in enumerate(parents)
        if each.run.url == wanted.run.url and wanted.step in (None, each.step)
    ]
    # One and the same checkpoint may be named twice.
    if not found or len({parents[number].step for number in found}) > 1:
        problem = "is none of the runs to merge" if not found else "is merged at several steps"
        raise UserError(problem, where=f"--position-of {text}", hint="name one of them as it stands there, RUN@STEP")
    return found[0]


def _make(loaded: Loaded, *, command: Any, as_json: bool) -> None:
    from shardline.components.training.start.making import make
    from shardline.pipelines.cli.typed import program
    from shardline.pipelines.progress import size

    told = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal told
        if time.monotonic() - told >= _TELL_SECONDS:
            told = time.monotonic()
            note(f"{size(done)} of {size(total)}")

    made = make(loaded, command=command, on_part=tell)
    print_json(made) if as_json else print_table(_rows(made))
    config = f"{made['url']}/config.yaml"
    if made["bytes"] is None:
        note(f"its data set is yet to be made: {program()} run {config}")
    elif not as_json:
        done = "" if made["made"] else "it was there already. "
        note(f"{done}Train it with: {program()} train {config}")


def _rows(made: Mapping[str, Any]) -> list[tuple[str, str]]:
    from shardline.pipelines.progress import size

    total = sum(parent["weight"] for parent in made["parents"])
    several = len(made["parents"]) > 1
    rows = [("run", str(made["run"])), ("folder", str(made["url"]))]
    for parent in made["parents"]:
        share = f", {parent['weight'] / total:.4g} of the mean" if several else ""
        rows.append(("from", f"step {parent['step']:,} of {parent['run']}{share}"))
    rows.append(("begins at", f"step {made['step']:,}, data position {made['position']:,}"))
    rows += [(key, f"{change['before']} -> {change['now']}") for key, change in made["changes"].items()]
    return [*rows, ("checkpoint", "to come" if made["bytes"] is None else size(made["bytes"]))]
