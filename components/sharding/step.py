"""The shard step: make the run's data set, or find it made, and say in the run folder which one it is.

Called by the pipeline's shard component and by `shardline shard`. A run keeps the data set that it began with: its
samples are part of what it is.
"""

from __future__ import annotations

from typing import Any

from shardline.components.common.config import RunConfig
from shardline.components.common.errors import UserError
from shardline.components.common.runfolder import DATASET_FILE, read_json, run_storage, write_json
from shardline.components.common.status import StatusWriter
from shardline.components.common.step import StepContext, stepping
from shardline.components.common.storage import Storage
from shardline.components.sharding.codec import Decision
from shardline.components.sharding.dataset import Dataset
from shardline.components.sharding.enough import first_change
from shardline.components.sharding.making import OnCodec, OnOvertaken, OnProgress, Progress, merge, shard
from shardline.components.sharding.manifest import Manifest, codecs_of, folder
from shardline.components.sharding.recipe import Recipe, recipe_of
from shardline.components.sharding.tokenizer import Tokenizer


def run(config: RunConfig, *, sources: dict[str, str] | None = None, merging: bool = False) -> dict[str, Any]:
    """Make the data set; returns its facts, as they are written into the run folder.

    Args:
        merging: parts have done the work; one that has not done all of its own is an error.

    Raises:
        UserError: the corpus will not do, or is not the one that this run began with.
    """
    with stepping(config, "shard", sources=sources) as context:
        pinned = read_json(context.run, DATASET_FILE)
        manifest = _manifest(context.config, pinned, context, merging=merging)
        facts = _facts(config, manifest)
        if pinned is not None and facts["key"] == pinned["key"] and facts["fingerprint"] != pinned["fingerprint"]:
            raise UserError(
                "made again, the data set is not the one that this run began with",
                where=facts["url"],
                hint="give the new run another name",
            )
        write_json(context.run, DATASET_FILE, facts)
        context.events.emit("sharding.finished", facts)
        context.summary.update({name: facts[name] for name in ("key", "fingerprint", "blocks", "tokens")})
        return facts


def find_dataset(config: RunConfig) -> Dataset:
    """The data set of `config`'s run, opened.

    Raises:
        UserError: the shard step has not been run.
        DamagedData: it is not what was written.
    """
    run_folder = run_storage(config)
    pinned = read_json(run_folder, DATASET_FILE)
    if pinned is None:
        raise UserError("this run has no data set yet", where=run_folder.url, hint="run `shardline shard CONFIG` first")
    return Dataset.open(Storage(config.storage), pinned["key"])


def _check_vocabulary(config: RunConfig, recipe: Recipe) -> None:
    """Raises UserError when the given tokenizer has more tokens than the model: found now, not after hours of work."""
    if recipe.tokenizer is None or config.model.vocab is None:
        return
    where = str(config.tokenizer.url)
    tokenizer = Tokenizer(recipe.tokenizer, end_of_text=config.tokenizer.end_of_text, where=where)
    if tokenizer.vocab > config.model.vocab:
        raise UserError(
            f"has {tokenizer.vocab:,} tokens, and the model {config.model.vocab:,}",
            where=where,
            hint="set tokenizer.url to the model's own" if config.model.url else "set model.vocab to that or more",
        )


def _manifest(config: RunConfig, pinned: dict[str, Any] | None, context: StepContext, *, merging: bool) -> Manifest:
    try:
        recipe = recipe_of(config)
    except UserError as error:
        if pinned is None:
            raise
        return _kept(config, pinned, context, reason=f"the corpus is not there any more ({error})")
    if pinned is not None and pinned["key"] not in [link.key for link in recipe.links]:
        before = Dataset.open(Storage(config.storage), pinned["key"])
        if before.manifest.sequence != config.block:
            raise UserError(
                f"blocks would have {config.block} tokens; in this run's data set they have {before.manifest.sequence}",
                where="training.stages" if config.training.stages else "training.sequence",
                hint="give the new run another name; sharding.block leaves room for longer samples later on",
            )
        if (change := _change(recipe, before)) is not None:
            raise UserError(
                f"the corpus is not the one that this run began with: {change}",
                where=", ".join(config.corpus.named_sources()),
                hint="bring the old files back, or give the new run another name",
            )
        return _kept(config, pinned, context, reason="the corpus has the same files and sizes with other time stamps")
    _check_vocabulary(config, recipe)
    with StatusWriter(context.run, phase="shard", generation=context.generation, lease=context.lease) as status:
        if merging:
            manifest = merge(config, recipe=recipe, on_overtaken=_overtaken(context))
        else:
            manifest = shard(
                config,
                recipe=recipe,
                on_progress=_reporting(status),
                on_codec=_telling(context),
                on_overtaken=_overtaken(context),
            )
    if pinned is not None and pinned["key"] != manifest.key:
        data = {"from": pinned["key"], "to": manifest.key, "sources": list(manifest.sources)}
        context.events.emit("sharding.appended", data, reason="the config names appended sources that are new")
    return manifest


def _kept(config: RunConfig, pinned: dict[str, Any], context: StepContext, *, reason: str) -> Manifest:
    """The data set that the run has: it needs no corpus to go on."""
    context.events.emit("sharding.skipped", {"key": pinned["key"]}, reason=reason)
    return Dataset.open(Storage(config.storage), pinned["key"]).manifest


def _change(recipe: Recipe, before: Dataset) -> str | None:
    was = [(file["url"], file["size"]) for files in before.all_files() for file in files]
    found = [file for link in recipe.links for source in link.sources for file in source.files]
    return first_change(was, [(file.url, file.size) for file in found])


def _reporting(status: StatusWriter) -> OnProgress:
    def report(progress: Progress) -> None:
        status.set(step=progress.done, total=progress.total, bytes=progress.bytes, activity=progress.phase)

    return report


def _telling(context: StepContext) -> OnCodec:
    def tell(decision: Decision) -> None:
        facts = {"codec": decision.codec, "source": decision.source, "goal": decision.wish["goal"]}
        context.events.emit("codec.chosen", facts, reason=decision.reason)

    return tell


def _overtaken(context: StepContext) -> OnOvertaken:
    def tell(manifest: Manifest) -> None:
        reason = "another process has made the same data set meanwhile: that one is used"
        context.events.emit("sharding.overtaken", {"key": manifest.key}, reason=reason)

    return tell


def _facts(config: RunConfig, manifest: Manifest) -> dict[str, Any]:
    return {
        "key": manifest.key,
        "fingerprint": manifest.fingerprint,
        "url": Storage(config.storage).url_of(folder(manifest.key)),
        "vocab": manifest.vocab,
        "sequence": manifest.sequence,
        "blocks": manifest.train.blocks,
        "tokens": manifest.train.tokens,
        "documents": manifest.train.documents,
        "bytes": manifest.train.bytes,
        "shards": len(manifest.train.shards),
        "shard_bytes": sum(shard.size for shard in manifest.train.shards),
        "codecs": list(codecs_of(manifest)),
        "held_out": {
            "blocks": manifest.held_out.blocks,
            "tokens": manifest.held_out.tokens,
            "documents": manifest.held_out.documents,
            "bytes": manifest.held_out.bytes,
        },
        "skipped": manifest.skipped.documents,
        "near_duplicates": manifest.near_duplicates.documents,
    }
