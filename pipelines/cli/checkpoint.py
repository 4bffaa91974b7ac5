"""`shardline checkpoint`: a look at a run's checkpoints, and what is done to those that are there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shardline.pipelines.cli.options import AsJson, Root, Run, found_run
from shardline.pipelines.cli.output import note, print_json, print_table

if TYPE_CHECKING:
    from shardline.components.common.config.training_schema import Keep
    from shardline.components.common.storage import Storage

app = typer.Typer(
    no_args_is_help=True,
    help="List, check, convert and remove checkpoints.",
    rich_markup_mode=None,
)

Step = Annotated[
    int | None, typer.Option("--step", min=0, help="That of this optimizer step, instead of the one to go on from.")
]


@app.command("list")
def list_checkpoints(run: Run, root: Root = None, as_json: AsJson = False) -> None:
    """Show the checkpoints there are.

    The one to go on from comes first; what does not count, and why, last.
    """
    from shardline.components.training.checkpoint.inspect import listing
    from shardline.pipelines.checkpointtable import list_rows

    found = listing(found_run(run, root))
    print_json(found) if as_json else print_table(list_rows(found))


@app.command()
def info(run: Run, step: Step = None, root: Root = None, as_json: AsJson = False) -> None:
    """Show what is in a checkpoint.

    Its step, the layout that it was saved under, identity, and every tensor with shape and type.
    """
    from shardline.components.training.checkpoint.inspect import facts, find
    from shardline.pipelines.checkpointtable import info_rows

    folder = found_run(run, root)
    found = facts(folder, find(folder, step))
    print_json(found) if as_json else print_table(info_rows(found))


@app.command()
def verify(
    run: Run,
    step: Annotated[int | None, typer.Option("--step", min=0, help="Only that of this optimizer step.")] = None,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Read every file and compare its hash.

    Exits with 5 when something is not what was written.
    """
    from shardline.components.common.errors import DamagedData
    from shardline.components.training.checkpoint import inspect

    records, problems = inspect.verify(found_run(run, root), step)
    steps = [record.step for record in records]
    if as_json:
        print_json({"steps": steps, "whole": not problems, "problems": problems})
    elif not problems:
        print_table([(f"step {each:,}", "as it was written") for each in steps])
    if problems:
        raise DamagedData("\n".join(problems), hint="training passes over it and goes on from the one before")


@app.command()
def convert(
    run: Run,
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="A Hugging Face folder to make, or a file ending in .safetensors.",
            show_default=False,
        ),
    ],
    step: Step = None,
    max_shard_size: Annotated[
        str, typer.Option("--max-shard-size", metavar="SIZE", help="Of the weight files of a folder, such as 500MiB.")
    ] = "4GiB",
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Write a checkpoint's model for other tools.

    Every hash is checked first. In one file the tensors have this project's names, and the types they were saved in.
    The model is never in memory as a whole.
    """
    shard_bytes = _bytes(max_shard_size)
    folder = found_run(run, root)

    from shardline.components.evaluation.convert import convert as convert_checkpoint
    from shardline.components.training.checkpoint.inspect import find
    from shardline.pipelines.progress import size

    made = convert_checkpoint(folder, find(folder, step), target=target, shard_bytes=shard_bytes)
    rows = [("from", str(made["checkpoint"])), ("to", str(made["url"]))]
    rows.append(("model", f"{made['tensors']:,} tensors, {size(made['bytes'])}, {made['format']}"))
    print_json(made) if as_json else print_table(rows)


@app.command()
def prune(
    run: Run,
    last: Annotated[int | None, typer.Option("--last", min=1, help="Keep this many of the newest.")] = None,
    every: Annotated[int | None, typer.Option("--every", min=1, help="Keep those of every n-th step.")] = None,
    best: Annotated[int | None, typer.Option("--best", min=1, help="Keep this many of the lowest loss.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Remove the checkpoints that no rule keeps.

    So goes what is left of saves that did not come to their end. The rules are those given, or
    training.checkpoint.keep of the run. The newest that is sound always stays, and so do those that are pinned. It
    refuses while a process writes the run.
    """
    folder = found_run(run, root)

    from shardline.components.training.checkpoint.retention import prune_now
    from shardline.pipelines.progress import size

    removed = prune_now(folder, _rules(folder, last=last, every=every, best=best), dry_run=dry_run)
    if as_json:
        print_json({"removed": removed, "dry_run": dry_run})
        return
    print_table([(str(each["folder"]).rpartition("/")[2], f"{each['why']}, {size(each['bytes'])}") for each in removed])
    total = size(sum(each["bytes"] for each in removed))
    note(f"{len(removed):,} {'would be' if dry_run else 'were'} removed, {total}")


@app.command()
def pin(
    run: Run,
    step: Annotated[int, typer.Argument(min=0, help="The checkpoint's optimizer step.", show_default=False)],
    remove: Annotated[bool, typer.Option("--remove", help="Take the pin away.")] = False,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Keep a checkpoint whatever the rules say.

    It may be called while training goes on.
    """
    from shardline.components.training.checkpoint import catalog
    from shardline.components.training.checkpoint.inspect import find

    folder = found_run(run, root)
    record = find(folder, step)
    catalog.pin(folder, record, pinned=not remove)
    shown = {"step": step, "folder": folder.url_of(record.folder), "pinned": not remove}
    print_json(shown) if as_json else print_table([(f"step {step:,}", "no longer pinned" if remove else "pinned")])


def _bytes(text: str) -> int:
    """The size that --max-shard-size gives."""
    from shardline.components.common.config.fields import parse_size
    from shardline.components.common.errors import UserError

    try:
        size = parse_size(text)
    except ValueError as error:
        raise UserError(f"{text!r} {error}", where="--max-shard-size") from None
    if size < 1:
        raise UserError("must be at least one byte", where="--max-shard-size")
    return size


def _rules(run: Storage, *, last: int | None, every: int | None, best: int | None) -> Keep:
    """The rules of the options, or those of the run's config."""
    from shardline.components.common.config.training_schema import Keep
    from shardline.components.common.errors import UserError
    from shardline.components.common.runfolder import read_config

    if last or every or best:
        return Keep(last=last or 1, every=every, best=best)
    keep = read_config(run).training.checkpoint.keep
    if keep is None:
        hint = "say what is to stay: --last, --every or --best"
        raise UserError("training.checkpoint.keep of this run is null: all checkpoints stay", where=run.url, hint=hint)
    return keep
