"""The paths on this machine that a run config names.

Called by the command line, once, before anything changes the working directory or leaves the machine.
"""

from __future__ import annotations

import glob
import os

from shardline.components.common.config.load import Loaded
from shardline.components.common.config.schema import RunConfig


def is_local(url: str) -> bool:
    """Whether `url` is a path on this machine: no URL, and not the standard library's sources (`stdlib:`)."""
    return "://" not in url and not url.startswith("stdlib:")


def local_paths(config: RunConfig) -> dict[str, str]:
    """The keys of `config` that hold a path on this machine, with the path as it is written."""
    named = {"storage": config.storage}
    named |= {f"corpus.urls.{index}": url for index, url in enumerate(config.corpus.urls or [])}
    for name, source in config.corpus.sources.items():
        named |= {f"corpus.sources.{name}.urls.{index}": url for index, url in enumerate(source.urls)}
    if config.tokenizer.url is not None:
        named["tokenizer.url"] = config.tokenizer.url
    if config.model.url is not None:
        named["model.url"] = config.model.url
    # Without a slash it is the name of a run.
    parents = enumerate(config.training.start)
    named |= {f"training.start.{index}.run": parent.run for index, parent in parents if "/" in parent.run}
    return {key: url for key, url in named.items() if is_local(url)}


def refuse_relative(loaded: Loaded) -> None:
    """Refuse what only this machine has, before it goes to a cluster.

    Raises:
        ConfigError: a key holds a relative path.
    """
    for key, path in local_paths(loaded.config).items():
        if not path.startswith("/"):
            raise loaded.problem(
                key,
                "is relative to a folder of this machine, which a cluster's pods do not see: name a URL such as "
                "s3://bucket/folder, or the absolute path of a volume that is mounted in each pod",
            )


def missing_inputs(config: RunConfig) -> dict[str, str]:
    """Of `local_paths`, what a run reads and is not there: no file, no folder, and no glob that finds one."""
    inputs = {key: path for key, path in local_paths(config).items() if key != "storage"}
    return {key: path for key, path in inputs.items() if not (os.path.exists(path) or glob.glob(path, recursive=True))}


def absolute(config: RunConfig) -> RunConfig:
    """`config` with each path on this machine made absolute, from the working directory."""
    corpus = config.corpus
    sources = {
        name: source.model_copy(update={"urls": [_absolute(url) for url in source.urls]})
        for name, source in corpus.sources.items()
    }
    urls = None if corpus.urls is None else [_absolute(url) for url in corpus.urls]
    corpus = corpus.model_copy(update={"urls": urls, "sources": sources})
    tokenizer = config.tokenizer
    if tokenizer.url is not None:
        tokenizer = tokenizer.model_copy(update={"url": _absolute(tokenizer.url)})
    model = config.model
    if model.url is not None:
        model = model.model_copy(update={"url": _absolute(model.url)})
    cache = config.resources.cache
    if cache.folder != "auto":
        cache = cache.model_copy(update={"folder": _absolute(cache.folder)})
    resources = config.resources.model_copy(update={"cache": cache})
    start = [
        parent.model_copy(update={"run": _absolute(parent.run)}) if "/" in parent.run else parent
        for parent in config.training.start
    ]
    training = config.training.model_copy(update={"start": start})
    changes = {"training": training, "corpus": corpus, "tokenizer": tokenizer, "model": model, "resources": resources}
    return config.model_copy(update={"storage": _absolute(config.storage), **changes})


def _absolute(url: str) -> str:
    return os.path.abspath(os.path.expanduser(url)) if is_local(url) else url
