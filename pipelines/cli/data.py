"""`shardline data`: a look inside a data set, and what is done to one that is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardline.pipelines.cli.options import AsJson, ConfigPath, Overrides, Root, read_config
from shardline.pipelines.cli.output import note, print_json, print_table

if TYPE_CHECKING:
    from shardline.components.common.config import RunConfig
    from shardline.components.sharding.dataset import Dataset

app = typer.Typer(no_args_is_help=True, help="Look inside a data set, check it, append to it.", rich_markup_mode=None)

Target = Annotated[
    str,
    typer.Argument(
        metavar="DATASET", help="A data set's folder or URL, or the config of a run that has one.", show_default=False
    ),
]
HeldOut = Annotated[bool, typer.Option("--held-out", help="Of the held-out split instead of the training one.")]


@app.command()
def info(target: Target, root: Root = None, as_json: AsJson = False) -> None:
    """Sizes, sources, codecs, what was left out."""
    from shardline.components.sharding.inspect import facts
    from shardline.pipelines.datatable import info_rows

    found = facts(_open(target, root=root))
    print_json(found) if as_json else print_table(info_rows(found))


@app.command()
def head(
    target: Target,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="How many blocks.")] = 1,
    block: Annotated[int, typer.Option("--block", min=0, help="The first of them.")] = 0,
    held_out: HeldOut = False,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """The text of blocks, and which documents it is from."""
    from shardline.components.sharding.inspect import Viewer
    from shardline.pipelines.datatable import block_lines

    viewer = Viewer(_open(target, root=root), "held_out" if held_out else "train")
    shown = [viewer.block(number) for number in range(block, block + count)]
    print_json(shown) if as_json else print("\n".join(line for each in shown for line in block_lines(each)))


@app.command()
def verify(target: Target, root: Root = None, as_json: AsJson = False) -> None:
    """Read all of it and compare every hash. Exits with 5 when something is not what was written."""
    from shardline.components.common.errors import DamagedData
    from shardline.components.sharding import inspect

    dataset = _open(target, root=root)
    problems = inspect.verify(dataset)
    manifest = dataset.manifest
    shards = len(manifest.train.shards) + len(manifest.held_out.shards)
    if as_json:
        print_json({"key": manifest.key, "shards": shards, "whole": not problems, "problems": problems})
    elif not problems:
        print_table([("data set", dataset.url_of("")), ("shards", f"{shards:,}, all as they were written")])
    if problems:
        raise DamagedData("\n".join(problems), hint="delete those files and run `shardline shard` again")


@app.command()
def find(
    config: ConfigPath,
    step: Annotated[int | None, typer.Option("--step", min=0, help="The samples of this optimizer step.")] = None,
    sample: Annotated[int | None, typer.Option("--sample", min=0, help="The sample with this global index.")] = None,
    overrides: Overrides = None,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Which samples and documents an optimizer step sees, and from which corpus file; or what a sample is.

    Steps are counted from 0. What a step has used is taken from what its ranks recorded; what it is going to use,
    from the order.
    """
    from shardline.components.common.errors import UserError
    from shardline.components.common.runfolder import run_storage
    from shardline.components.sharding.decisions import policy_of_run
    from shardline.components.sharding.inspect import Viewer
    from shardline.pipelines.datatable import block_lines, recorded_blocks

    if (step is None) == (sample is None):
        raise UserError("needs one of --step and --sample", where="shardline data find")
    loaded, dataset = _open_run(config, root=root, overrides=overrides)
    viewer, policy = Viewer(dataset), policy_of_run(run_storage(loaded), loaded)
    if step is not None:
        used = recorded_blocks(loaded, step)
        shown = viewer.step(policy, step)
        found: dict[str, Any] = {"step": step, "recorded": used, "samples": shown}
        if used is not None and used != [each["block"] for each in shown]:
            note("note: the step recorded other samples than the order of this config has; --json shows both")
    else:
        shown = [viewer.sample(policy, int(sample or 0))]
        found = shown[0]
    print_json(found) if as_json else print("\n".join(line for each in shown for line in block_lines(each)))


@app.command()
def shuffle(config: ConfigPath, overrides: Overrides = None, root: Root = None, as_json: AsJson = False) -> None:
    """How well a run's window shuffles, beside other windows and a true shuffle, and what each costs in memory."""
    from dataclasses import asdict

    import numpy as np

    from shardline.components.sharding.order.quality import qualities
    from shardline.pipelines.datatable import shuffle_rows

    loaded, dataset = _open_run(config, root=root, overrides=overrides)
    training = loaded.training
    split = dataset.split("train")
    windows = sorted({training.window, *(4**power for power in range(2, 7) if 4**power < split.groups)})
    width = np.dtype(split.dtype).itemsize * (split.sequence + 1)
    found = qualities(
        split.geometry, windows=windows, batch=training.global_batch, seed=training.seed, block_bytes=width
    )
    shown = [asdict(each) for each in found]
    print_json(shown) if as_json else print_table(shuffle_rows(shown, training.window))


@app.command()
def append(
    config: ConfigPath,
    name: Annotated[str, typer.Argument(help="The new source's name.", show_default=False)],
    urls: Annotated[list[str], typer.Argument(help="Its files, folders or globs.", show_default=False)],
    at: Annotated[int, typer.Option("--at", min=1, help="The optimizer step from which on it is trained on.")],
    mixture: Annotated[str, typer.Option("--mixture", help="The weights from then on, such as corpus=3,new=1.")],
    overrides: Overrides = None,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Append a source to a run's data set; what is there stays as it is.

    Prints what to add to the config so that the run goes on with it.
    """
    import json

    import yaml

    from shardline.pipelines.cli.shard import shard_step
    from shardline.pipelines.datatable import parse_mixture

    before = read_config(config, overrides=overrides, root=root).config
    weights = parse_mixture(mixture)
    stages = [stage.model_dump(mode="json", exclude_none=True) for stage in before.training.stages]
    stages.append({"at": at, "mixture": weights})
    source = {"urls": urls, "appended": True}
    extra = [f"corpus.sources.{name}={json.dumps(source)}", f"training.stages={json.dumps(stages)}"]
    result = shard_step(read_config(config, overrides=[*(overrides or []), *extra], root=root))
    added = {"corpus": {"sources": {name: source}}, "training": {"stages": stages}}
    if as_json:
        print_json({**result, "config": added})
    else:
        note(f"appended; add this to {config}:")
        print(yaml.safe_dump(added, sort_keys=False), end="")


def _open_run(path: str, *, root: str | None, overrides: list[str] | None = None) -> tuple[RunConfig, Dataset]:
    """The config at `path`, and the data set of its run."""
    from shardline.components.sharding.step import find_dataset

    config = read_config(path, overrides=overrides, root=root).config
    return config, find_dataset(config)


def _open(target: str, *, root: str | None) -> Dataset:
    """The data set that DATASET means."""
    from shardline.components.common.storage import Storage
    from shardline.components.sharding.dataset import Dataset

    if target.endswith((".yaml", ".yml", ".json")):
        return _open_run(target, root=root)[1]
    folder = target.rstrip("/").removesuffix("/manifest.json")
    base, _, key = folder.rpartition("/datasets/")
    if not base:
        base, key = root or ".", folder.removeprefix("datasets/")
    return Dataset.open(Storage(base), key)
