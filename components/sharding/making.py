"""The making of a data set: a run config in, a data set under the storage root out. Called by `step`.

Idempotent: a data set that is there is checked and kept, one that was begun is gone on with, one of which something is
missing is made again. Two processes that make the same one at once do no harm: all they write is the same, and each
file appears whole. So it can be made in parts, by as many processes as there are, anywhere.

Errors: `UserError` for a corpus or tokenizer that will not do, `DamagedData` for a manifest of another version,
`PeerLost` when a worker was killed.
"""

from __future__ import annotations

from shardline.components.common.config import RunConfig
from shardline.components.common.errors import DamagedData, ShardlineError, UserError
from shardline.components.common.storage import Storage
from shardline.components.sharding import manifest as names
from shardline.components.sharding.attempt import Attempt, OnCodec, OnProgress, Progress
from shardline.components.sharding.dataset import Dataset
from shardline.components.sharding.manifest import Manifest, OtherVersion
from shardline.components.sharding.recipe import Link, Recipe, job_of, recipe_of

__all__ = ["OnCodec", "OnProgress", "Progress", "merge", "shard", "shard_part"]


def shard(
    config: RunConfig,
    *,
    recipe: Recipe | None = None,
    on_progress: OnProgress | None = None,
    on_codec: OnCodec | None = None,
) -> Manifest:
    """Make the data set, or find it made.

    Args:
        recipe: that of `config`, where it is known already.
        on_codec: is told what `sharding.codec: auto` came to.
    """
    links, given = recipe or recipe_of(config)
    base: Dataset | None = None
    for link in links:
        manifest = _make(config, link, given=given, base=base, on_progress=on_progress, on_codec=on_codec)
        base = Dataset.open(Storage(config.storage), manifest.key)
    return manifest


def shard_part(config: RunConfig, part: int, parts: int, *, on_progress: OnProgress | None = None) -> None:
    """Do part `part` (from 0) of `parts` of the work on the last link; `merge` makes a data set of all parts.

    Raises:
        UserError: what it is appended to is not there.
    """
    recipe = recipe_of(config)
    if _finished(Storage(config.storage), recipe.links[-1].key) is None:
        _last_attempt(config, recipe, on_progress=on_progress).run_part(part, parts)


def merge(config: RunConfig, *, recipe: Recipe | None = None) -> Manifest:
    """Make a data set of what all parts have done.

    Raises:
        UserError: a part has not done all of its work.
    """
    recipe = recipe or recipe_of(config)
    storage, key = Storage(config.storage), recipe.links[-1].key
    found = _finished(storage, key)
    if found is None:
        attempt = _last_attempt(config, recipe)
        found = attempt.assemble(attempt.finish())
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


def _make(
    config: RunConfig,
    link: Link,
    *,
    given: bytes | None,
    base: Dataset | None,
    on_progress: OnProgress | None,
    on_codec: OnCodec | None,
) -> Manifest:
    storage = Storage(config.storage)
    found = _finished(storage, link.key)
    if found is None:
        attempt = Attempt(
            config, job_of(config, link), given=given, base=base, on_progress=on_progress, on_codec=on_codec
        )
        try:
            found = attempt.assemble(attempt.run())
        except (FileNotFoundError, ShardlineError):
            # Another process has made the same data set meanwhile and cleaned up, or it is an error indeed.
            found = _finished(storage, link.key)
            if found is None:
                raise
    storage.delete_tree(f"{names.folder(link.key)}/work")
    return found


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
