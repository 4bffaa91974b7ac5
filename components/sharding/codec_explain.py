"""Why the shards of a run are compressed as they are, for `shardline shard --explain`. Nothing is written.

What is recorded is shown as it is. Before that, the same measurement is made on the corpus as it lies there; where the
tokenizer is still to be trained, with one that is trained on the sample.

Errors: `UserError` for a corpus or tokenizer that will not do, `DamagedData` for records that cannot be read.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from shardline.components.common.config import RunConfig
from shardline.components.common.runfolder import DATASET_FILE, read_json, run_storage
from shardline.components.common.storage import Storage
from shardline.components.sharding import manifest as names
from shardline.components.sharding import tokenizer as tokenizers
from shardline.components.sharding.codec import CODEC_FILE, Decision, decision_on, decisions_of, measure
from shardline.components.sharding.codec_sample import draw_texts, pack_texts
from shardline.components.sharding.recipe import Recipe, recipe_of


def explain(config: RunConfig) -> dict[str, Any]:
    """The decisions on the codec with their tables, and what the shards are compressed with, as JSON.

    `recorded` tells whether the decisions hold, or are what would be decided now.
    """
    storage = Storage(config.storage)
    pinned = read_json(run_storage(config), DATASET_FILE)
    recipe = None if pinned else recipe_of(config)
    key = str(pinned["key"]) if recipe is None else recipe.links[-1].key
    recorded = decisions_of(storage, key)
    decisions = recorded or (_preview(config, recipe or recipe_of(config), storage, key),)
    return {
        "key": key,
        "setting": config.sharding.codec,
        "wish": config.sharding.codec_wish.model_dump(mode="json"),
        "recorded": storage.url_of(f"{names.folder(key)}/{CODEC_FILE}") if recorded else None,
        "decisions": [_shown(decision) for decision in decisions],
        "shards": _shards(storage, key),
    }


def _shown(decision: Decision) -> dict[str, Any]:
    rows = [{**asdict(trial), "ratio": trial.ratio, "score": decision.scores[trial.codec]} for trial in decision.table]
    return {**asdict(decision), "table": rows}


def _shards(storage: Storage, key: str) -> dict[str, dict[str, int]]:
    """By codec, the shards that there are; none before the data set is complete."""
    if not storage.exists(f"{names.folder(key)}/{names.MANIFEST}"):
        return {}
    totals = names.codecs_of(names.read_manifest(storage, key))
    return {codec: {"shards": count, "bytes": size} for codec, (count, size) in totals.items()}


def _preview(config: RunConfig, recipe: Recipe, storage: Storage, key: str) -> Decision:
    sharding = config.sharding
    texts = draw_texts([source for link in recipe.links for source in link.sources], unit=sharding.unit)
    tokenizer = tokenizers.Tokenizer(
        recipe.tokenizer or _tokenizer_json(config, storage, key, texts),
        end_of_text=config.tokenizer.end_of_text,
        where=config.tokenizer.url or storage.url_of(f"{names.folder(key)}/{names.TOKENIZER}"),
    )
    sample = pack_texts(texts, tokenizer=tokenizer, sequence=config.block, row_group=sharding.row_group)
    return decision_on(sample, measure(sample), wish=sharding.codec_wish)


def _tokenizer_json(config: RunConfig, storage: Storage, key: str, texts: list[str]) -> bytes:
    try:
        return storage.read(f"{names.folder(key)}/{names.TOKENIZER}")
    except FileNotFoundError:
        settings = config.tokenizer
        return tokenizers.train(texts, vocab=settings.vocab, end_of_text=settings.end_of_text)
