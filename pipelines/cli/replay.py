"""`shardline replay`: an optimizer step again, to see what went wrong in it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from shardline.pipelines.cli.options import AsJson, Overrides, Root, Run, found_run
from shardline.pipelines.cli.output import print_json, print_table

#: Parameters in the table: those with the largest gradients.
_MOST = 12


def replay(
    run: Run,
    step: Annotated[int, typer.Option("--step", min=0, help="The optimizer step, counted from 0.", show_default=False)],
    roll_backs: Annotated[
        bool, typer.Option("--roll-backs/--no-roll-backs", help="With the samples passed over that roll-backs did.")
    ] = True,
    overrides: Overrides = None,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Do an optimizer step again and show what was in it.

    It starts from the nearest checkpoint before the step, under any layout (`--set training.layout.pp=2`, `--set
    resources.processes=4`). The run is not touched. --json has every parameter and the text of every document.
    """
    from shardline.components.common.runfolder import read_config
    from shardline.components.elasticity.local import local_agent
    from shardline.components.training.replay import Wanted
    from shardline.components.training.replay import replay as do

    folder = found_run(run, root)
    config = read_config(folder, overrides=overrides or ())
    wanted = Wanted(run=folder.url, step=step, roll_backs=roll_backs)
    found = do(wanted, config=config, agent=local_agent(config))
    if as_json:
        print_json(found)
        return
    print_table(_rows(found))


def _rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    recorded = found["recorded"]

    def beside(name: str) -> str:
        return f"{found[name]:.6g}" + (f" (recorded: {recorded[name]:.6g})" if recorded[name] is not None else "")

    rows = [
        ("step", f"{found['step']:,}, from the checkpoint of step {found['from_step']:,}; {found['verdict']}"),
        ("loss", beside("loss")),
        ("gradient norm", beside("gradient_norm")),
        ("learning rate", f"{found['learning_rate']:.4g}"),
        ("target tokens", f"{found['tokens']:,}"),
    ]
    largest = sorted(found["parameters"].items(), key=lambda each: -each[1].get("gradient_norm", 0.0))
    rows += [(name, _of_parameter(facts)) for name, facts in largest[:_MOST]]
    if len(largest) > _MOST:
        rows.append(("", f"and {len(largest) - _MOST} parameters with smaller gradients"))
    for sample in found["samples"]:
        documents = ", ".join(f"{each['file']} at {each['at']}" for each in sample["documents"])
        rows.append((f"sample {sample['sample']}", documents))
    return rows


def _of_parameter(facts: dict[str, Any]) -> str:
    wrong = facts["not_finite"] + facts.get("gradient_not_finite", 0)
    text = f"norm {facts['norm']:.4g}, gradient {facts.get('gradient_norm', 0.0):.4g}"
    return text + (f", {wrong:,} numbers not finite" if wrong else "")
