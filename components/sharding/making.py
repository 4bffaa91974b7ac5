"""The making of a data set: a run config in, a data set under the storage root out. Called by `step`.

Idempotent: a data set that is there is checked and kept, one that was begun is gone on with, one of which something is
missing is made again. Two processes that make the same one at once do no harm: all they write is the same, and each
file appears whole; the one that is later says so and uses what is there. So it can be made in parts, by as many
processes as there are, anywhere. What killed writers have left of files goes before the work and after it.

Errors: `UserError` for a corpus or tokenizer that will not do, `DamagedData` for a manifest of another version,
`PeerLost` when a worker was killed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from shardline.components.common.config import RunConfig
from shardline.components.common.errors import DamagedData, ShardlineError, UserError
from shardline.components.common.storage import Storage
from shardline.components.sharding import manifest as names
from shardline.components.sharding.attempt import Attempt, OnCodec, OnProgress, Progress
from shardline.components.sharding.codec import CODEC_FILE
from shardline.components.sharding.dataset import Dataset
from shardline.components.sharding.manifest import Manifest, OtherVersion
from shardline.components.sharding.recipe import Link, Recipe, job_of, recipe_of

__all__ = ["OnCodec", "OnOvertaken", "OnProgress", "Progress", "merge", "shard", "shard_part"]

#: Is told of the data set that another process has made while this one was at it too.
OnOvertaken = Callable[[Manifest], None]

_logger = logging.getLogger(__name__)


def shard(
    config: RunConfig,
    *,
    recipe: Recipe | None = None,
    on_progress: OnProgress | None = None,
    on_codec: OnCodec | None = None,
    on_overtaken: OnOvertaken | None = None,
) -> Manifest:
    """Make the data set, or find it made.

    Args:
        recipe: that of `config`, where it is known already.
        on_codec: is told what `sharding.codec: auto` came to.
        on_overtaken: is told of the data set when another process has made it first, and this one uses that.
    """
    links, given = recipe or recipe_of(config)
    base: Dataset | None = None
    for link in links:
        job = job_of(config, link)
        attempt = Attempt(config, job, given=given, base=base, on_progress=on_progress, on_codec=on_codec)
        manifest = _make(attempt, Storage(config.storage), link.key, on_overtaken=on_overtaken)
        base = Dataset.open(Storage(config.storage), manifest.key)
    return manifest


def shard_part(
    config: RunConfig,
    part: int,
    parts: int,
    *,
    on_progress: OnProgress | None = None,
    on_overtaken: OnOvertaken | None = None,
) -> None:
    """Do part `part` (from 0) of `parts` of the work on the last link; `merge` makes a data set of all parts.

    Raises:
        UserError: what it is appended to is not there.
    """
    recipe, storage = recipe_of(config), Storage(config.storage)
    key = recipe.links[-1].key
    if _finished(storage, key) is not None:
        return
    attempt = _last_attempt(config, recipe, on_progress=on_progress)
    _remove_leftovers(storage, key)
    try:
        attempt.run_part(part, parts)
    except (FileNotFoundError, ShardlineError):
        found = _made_meanwhile(storage, key, on_overtaken)
        if found is None:
            raise
        storage.delete_tree(f"{names.folder(key)}/work")


def merge(config: RunConfig, *, recipe: Recipe | None = None, on_overtaken: OnOvertaken | None = None) -> Manifest:
    """Make a data set of what all parts have done.

    Raises:
        UserError: a part has not done all of its work.
    """
    recipe = recipe or recipe_of(config)
    storage, key = Storage(config.storage), recipe.links[-1].key
    found = _finished(storage, key)
    if found is None:
        attempt = _last_attempt(config, recipe)
        found, is_first = attempt.assemble(attempt.finish())
        if not is_first and on_overtaken:
            on_overtaken(found)
        _remove_leftovers(storage, key)
    storage.delete_tree(f"{names.folder(key)}/work")
    return found


def _last_attempt(config: RunConfig, recipe: Recipe, *, on_progress: OnProgress | None = None) -> Attempt:
    link = recipe.links[-1]
    base = _base(Storage(config.storage), link)
    return Attempt(config, job_of(config, link), given=recipe.tokenizer, base=base, on_progress=on_progress)


def _base(storage: Storage, link: Link) -> Dataset | None:
    if link.base is None:
        return None
    if _finished(storage, link.base) is None:
        raise UserError(
            "the data set that this source is to be appended to is not there",
            where=storage.url_of(names.folder(link.base)),
            hint="run `shardline shard` without the appended source first",
        )
    return Dataset.open(storage, link.base)


def _make(attempt: Attempt, storage: Storage, key: str, *, on_overtaken: OnOvertaken | None) -> Manifest:
    found = _finished(storage, key)
    if found is None:
        _remove_leftovers(storage, key)
        found = _carry_out(attempt, storage, key, on_overtaken)
        _remove_leftovers(storage, key)
    storage.delete_tree(f"{names.folder(key)}/work")
    return found


def _carry_out(attempt: Attempt, storage: Storage, key: str, on_overtaken: OnOvertaken | None) -> Manifest:
    try:
        made, is_first = attempt.assemble(attempt.run())
    except (FileNotFoundError, ShardlineError):
        found = _made_meanwhile(storage, key, on_overtaken)
        if found is None:
            raise  # an error indeed
        return found
    if not is_first and on_overtaken:
        on_overtaken(made)
    return made


def _made_meanwhile(storage: Storage, key: str, on_overtaken: OnOvertaken | None) -> Manifest | None:
    """The data set, if another process has made it, and cleaned up under the hands of this one."""
    found = _finished(storage, key)
    if found is not None and on_overtaken:
        on_overtaken(found)
    return found


def _remove_leftovers(storage: Storage, key: str) -> None:
    """Remove what killed writers have left of files, of this data set and of any shard."""
    mine = {names.MANIFEST, names.INDEX, names.FILES, names.TOKENIZER, names.PRINTS, CODEC_FILE}
    places: dict[str, Callable[[str], bool]] = {
        names.SHARDS: lambda name: name.endswith(".parquet"),
        names.folder(key): mine.__contains__,
    }
    for folder, of in places.items():
        try:
            if count := storage.remove_leftovers(folder, of):
                _logger.info("removed what killed writers left in %s: %d unfinished file(s)", folder, count)
        except ShardlineError as error:
            # They take up room, and nothing else: no reason to fail.
            _logger.warning("what killed writers may have left stays: %s", error)


def _finished(storage: Storage, key: str) -> Manifest | None:
    """The manifest, if the data set is whole as far as sizes tell; a manifest of what is not is taken away."""
    folder = names.folder(key)
    path = f"{folder}/{names.MANIFEST}"
    try:
        data = storage.read(path)
    except FileNotFoundError:
        return None
    try:
        manifest = Manifest.from_json(data, where=storage.url_of(path))
    except OtherVersion:
        raise
    except DamagedData:
        storage.delete(path)
        return None
    parts = {f"{folder}/{name}": facts.size for name, facts in manifest.beside.items()}
    shards = (*manifest.train.shards, *manifest.held_out.shards)
    parts.update((names.shard_path(shard.hash), shard.size) for shard in shards)
    wrong = [name for name, size in parts.items() if _size(storage, name) != size]
    if not wrong:
        return manifest
    for name in (path, *wrong):
        storage.delete(name)
    return None


def _size(storage: Storage, path: str) -> int | None:
    try:
        return storage.size(path)
    except FileNotFoundError:
        return None
