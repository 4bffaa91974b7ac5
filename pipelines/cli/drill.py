"""`shardline drill`: disturb a run again and again, and see whether anything is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardline.pipelines.cli.options import AsJson, ConfigPath, Overrides, Root, read_config, seconds_of
from shardline.pipelines.cli.output import note, print_json, print_table

if TYPE_CHECKING:
    from shardline.components.common.errors import ShardlineError

#: Faults, when neither their number nor the time is given.
_FAULTS = 10


def drill(
    config: ConfigPath,
    kill: Annotated[
        list[str] | None,
        typer.Option("--kill", metavar="KIND", help="A kind of fault. Repeatable; all kinds unless given."),
    ] = None,
    every: Annotated[
        str, typer.Option("--every", metavar="TIME", help="From a recovery to the next fault, on average: 30s, 2m.")
    ] = "30s",
    duration: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="How long faults are made: 10m, 1h.")
    ] = None,
    faults: Annotated[
        int | None, typer.Option("--faults", min=1, help=f"How many; {_FAULTS} unless this or --for is given.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="The same seed makes the same faults.")] = 0,
    early: Annotated[
        float, typer.Option("--early", min=0.0, max=1.0, help="The part that does not wait for a recovery.")
    ] = 0.25,
    agents: Annotated[
        int, typer.Option("--agents", min=1, help="Agents on this machine, which share resources.processes.")
    ] = 2,
    baseline: Annotated[
        bool, typer.Option("--baseline", help="Train undisturbed runs as well, and compare the losses.")
    ] = False,
    attach: Annotated[
        str | None, typer.Option("--attach", metavar="RUN", help="Disturb this run, which is at work.")
    ] = None,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Disturb pods of the cluster that KUBECONFIG names.")
    ] = False,
    history: Annotated[
        str | None, typer.Option("--history", metavar="FILE", help="Append the figures to this file, a line of JSON.")
    ] = None,
    overrides: Overrides = None,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Disturb a run and see whether anything is lost.

    It trains a run of its own with the config, as long as it takes, disturbs it by seeded faults, and prints for each
    fault how long no optimizer step was finished and how many were done again. Exits with 5 when a sample is lost,
    repeated or another one, or a loss is not that of an undisturbed run; with 175 when the run does not recover.

    KIND is, on this machine, one of worker, hang, agent, leader, server, two, all, terminate, pause and join; on a
    cluster one of pod, pod-force, evict, leader, two and all.
    """
    seconds = seconds_of(duration, "--for") if duration is not None else None
    interval = seconds_of(every, "--every")
    loaded = read_config(config, overrides=overrides, root=root)

    from shardline.pipelines import drilltable
    from shardline.pipelines.drill import Wanted
    from shardline.pipelines.drill import drill as do

    wanted = Wanted(
        kinds=kill or (),
        every=interval,
        seconds=seconds,
        count=faults or (None if seconds is not None else _FAULTS),
        seed=seed,
        early=early,
        agents=agents,
        baseline=baseline,
        attach=attach,
        cluster=cluster,
        tell=note,
    )
    found = do(loaded, wanted)
    if history is not None:
        drilltable.append(history, found)
    print_json(found) if as_json else print_table(drilltable.rows(found))
    if not found["held"]:
        raise _failure(found)


def _failure(found: dict[str, Any]) -> ShardlineError:
    from shardline.components.common.errors import DamagedData, PeerLost

    if found["problems"]:
        return DamagedData("\n".join(found["problems"]), hint="keep the run folder: it holds what happened")
    return PeerLost(str(found["lost"]))
