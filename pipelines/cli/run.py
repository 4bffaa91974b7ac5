"""`shardline run`: every step on this machine."""

from __future__ import annotations

from shardline.pipelines.cli.options import AsJson, ConfigPath, Overrides, Root, read_config
from shardline.pipelines.cli.output import note, print_json, print_table


def run(config: ConfigPath, overrides: Overrides = None, root: Root = None, as_json: AsJson = False) -> None:
    """Run the whole pipeline on this machine.

    The steps are shard, plan, train, evaluate and report; each skips what is done already. Stopped or killed at any
    moment, the same command goes on where it was. Exits with 4 when the gate refuses the model.
    """
    loaded = read_config(config, overrides=overrides, root=root)

    from shardline.components.common.machine import has_torch, without_torch
    from shardline.components.common.runfolder import run_storage
    from shardline.components.evaluation.gate import enforce
    from shardline.pipelines.cli.typed import command_line, program
    from shardline.pipelines.launch import run_pipeline
    from shardline.pipelines.summary import collect, next_steps, table

    if not has_torch():  # said now, not when the train step begins
        raise without_torch()
    if not run_pipeline(loaded):
        note("this run is done already: nothing has changed since")
    run_folder = run_storage(loaded.config)
    summary = collect(run_folder)
    if as_json:
        print_json(summary)
    else:
        print_table(table(summary, command=program()))
        again = command_line("run", config, overrides=overrides, root=root, leave_out="training.steps")
        note(next_steps(summary, train_to=lambda steps: f"{again} --set training.steps={steps}"))
    if summary["evaluation"]:
        enforce(summary["evaluation"], where=run_folder.url)
