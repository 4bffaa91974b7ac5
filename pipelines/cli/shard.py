"""`shardline shard`: the sharding step alone, or why its shards are compressed as they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardline.components.common.errors import UserError
from shardline.pipelines.cli.options import AsJson, ConfigPath, Overrides, Root, read_config
from shardline.pipelines.cli.output import note, print_json, print_table

if TYPE_CHECKING:
    from shardline.components.common.config import Loaded
    from shardline.components.sharding.manifest import Manifest

Explain = Annotated[
    bool,
    typer.Option("--explain", help="Only show which codec the shards have or would get, why, and what was measured."),
]
Part = Annotated[
    str | None,
    typer.Option(
        "--part", metavar="I/N", help="Only do part I, from 0, of N parts of the work, on as many machines; then merge."
    ),
]
Merge = Annotated[bool, typer.Option("--merge", help="Make the data set of what all parts have done.")]
_SCORES = {"smallest": "bytes a byte", "cheapest": "cost a GB", "fastest": "s a GB"}


def shard(
    config: ConfigPath,
    overrides: Overrides = None,
    root: Root = None,
    explain: Explain = False,
    part: Part = None,
    merge: Merge = False,
    as_json: AsJson = False,
) -> None:
    """Turn the corpus into tokenised Parquet shards and a manifest."""
    loaded = read_config(config, overrides=overrides, root=root)
    if sum((explain, part is not None, merge)) > 1:
        raise UserError("only one of them at a time", where="--explain, --part, --merge")
    if explain:
        from shardline.components.sharding.codec_explain import explain as explain_codec

        explained = explain_codec(loaded.config)
        print_json(explained) if as_json else print_table(_explained(explained))
        return
    if part is not None:
        _shard_part(loaded, *_parse_part(part))
        return
    result = shard_step(loaded, merging=merge)
    from shardline.pipelines import results

    print_json(result) if as_json else print_table(results.dataset(result))


def shard_step(loaded: Loaded, *, merging: bool = False) -> dict[str, Any]:
    """The step with its progress; what it returns."""
    from shardline.components.sharding import step
    from shardline.pipelines.cli.stepping import run_step

    return run_step("shard", loaded, lambda: step.run(loaded.config, sources=loaded.sources, merging=merging))


def _parse_part(text: str) -> tuple[int, int]:
    part, _, parts = text.partition("/")
    if not (part.isascii() and part.isdecimal() and parts.isascii() and parts.isdecimal() and int(part) < int(parts)):
        raise UserError(f"{text!r} should be I/N with I from 0 to N - 1", where="--part", hint="as in 0/4")
    return int(part), int(parts)


def _shard_part(loaded: Loaded, part: int, parts: int) -> None:
    from shardline.components.sharding.making import Progress, shard_part

    def tell(progress: Progress) -> None:
        note(f"part {part}/{parts}: {progress.phase}, {progress.done} of {progress.total} units")

    def overtaken(manifest: Manifest) -> None:
        note(f"part {part}/{parts}: another process has made the same data set meanwhile: {manifest.key}")

    shard_part(loaded.config, part, parts, on_progress=tell, on_overtaken=overtaken)


def _explained(explained: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for decision in explained["decisions"]:
        rows += [*_measured(decision), ("", ""), *_decided(decision, explained), ("", "")]
    return [*rows, *_written(explained)]


def _measured(decision: Mapping[str, Any]) -> list[tuple[str, str]]:
    score = _SCORES[decision["wish"]["goal"]]
    rows = [("codec", f"{'bytes':>12}  {'ratio':>6}  {'write MB/s':>10}  {'decode MB/s':>11}  {score:>12}")]
    for trial in decision["table"]:
        rates = f"{trial['write_mb_s']:>10,.1f}  {trial['decode_mb_s']:>11,.0f}"
        rows.append((trial["codec"], f"{trial['size']:>12,}  {trial['ratio']:>6.3f}  {rates}  {trial['score']:>12.4f}"))
    return rows


def _decided(decision: Mapping[str, Any], explained: Mapping[str, Any]) -> list[tuple[str, str]]:
    sample = decision["sample"]
    rows = [
        ("source", str(decision["source"])),
        ("chosen" if explained["recorded"] else "would be", decision["codec"]),
        ("reason", decision["reason"]),
        ("sample", f"{sample['tokens']:,} tokens of {sample['documents']:,} documents, {sample['bytes']:,} bytes"),
    ]
    if explained["recorded"] and decision["wish"] != explained["wish"]:
        rows.append(("wish", f"has changed since; to have it decided anew, delete {explained['recorded']}"))
    return rows


def _written(explained: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = [("setting", explained["setting"]), ("recorded", explained["recorded"] or "nothing: this is a preview")]
    for codec, total in explained["shards"].items():
        rows.append(("shards", f"{total['shards']:,} in {codec}, {total['bytes']:,} bytes"))
    return rows
