"""What a data set is made from, and the key that this gives it. Called by `making` and the step.

A data set with appended sources is a chain: the sources that it began with, then one link for each that was appended.
Each link is a data set of its own that holds all before it, so what was there stays as it is, and is not made again.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from shardline.components.common.config import RunConfig
from shardline.components.common.config.data_schema import AddedSource
from shardline.components.common.errors import from_os_error
from shardline.components.common.storage import split_url
from shardline.components.sharding import manifest as names
from shardline.components.sharding.corpus import Fields, SourceFiles, list_files
from shardline.components.sharding.job import Job
from shardline.components.sharding.shardfile import hash_of

#: Of a larger corpus the tokenizer is trained on a sample, drawn by content, of this many bytes a token, within limits.
SAMPLE_BYTES_A_TOKEN = 2048
SAMPLE_BYTES = (4 << 20, 256 << 20)


@dataclass(frozen=True, kw_only=True)
class Link:
    """A data set of the chain: what is new in it, and the key of the one before, None for the first."""

    key: str
    base: str | None
    sources: tuple[SourceFiles, ...]


class Recipe(NamedTuple):
    """The data sets that lead to the one that is asked for, itself last, and the tokenizer that was given."""

    links: list[Link]
    tokenizer: bytes | None


def recipe_of(config: RunConfig) -> Recipe:
    """What the data set is made from that `config` asks for; lists the corpus.

    Raises:
        UserError: the corpus is empty or not there, or the tokenizer is not.
    """
    given = _given_tokenizer(config)
    first = [
        _files(name, number, source)
        for number, (name, source) in enumerate(config.corpus.named_sources(appended=False).items())
    ]
    tokenizer = {"vocab": config.tokenizer.vocab} if given is None else {"hash": hash_of(given).hex()}
    recipe = {
        "version": names.version_for(any(source.fields.weight for source in first)),
        "sources": [_facts(source) for source in first],
        "bad": [config.corpus.bad_documents, config.corpus.bad_budget],
        "tokenizer": {**tokenizer, "end_of_text": config.tokenizer.end_of_text},
        "sequence": config.block,
        "packing": config.sharding.packing,
        "unit": config.sharding.unit,
        "row_group": config.sharding.row_group,
        "held_out": config.sharding.held_out,
    }
    links = [Link(key=_key(recipe), base=None, sources=tuple(first))]
    for number, (name, source) in enumerate(config.corpus.named_sources(appended=True).items(), start=len(first)):
        base, files = links[-1].key, _files(name, number, source)
        key = _key({"base": base, "source": _facts(files), "unit": config.sharding.unit})
        links.append(Link(key=key, base=base, sources=(files,)))
    return Recipe(links, given)


def _files(name: str, number: int, source: AddedSource) -> SourceFiles:
    fields = Fields(source.text_field, source.prompt_field, source.weight_field)
    return SourceFiles(name=name, number=number, files=tuple(list_files(source)), fields=fields)


def _facts(source: SourceFiles) -> dict[str, Any]:
    facts = asdict(source)
    # A data set without weights has the key that it had before there were any.
    if source.fields.weight is None:
        del facts["fields"]["weight"]
    return facts


def _key(recipe: dict[str, Any]) -> str:
    return hash_of(json.dumps(recipe, sort_keys=True).encode()).hex()


def _given_tokenizer(config: RunConfig) -> bytes | None:
    url = config.tokenizer.url
    if url is None:
        return None
    fs, path = split_url(url)
    try:
        return bytes(fs.cat_file(path))
    except OSError as error:
        raise from_os_error(error, url) from error


def job_of(config: RunConfig, link: Link) -> Job:
    """What the workers need to know to make `link`."""
    total = sum(file.size for source in link.sources for file in source.files)
    sample = min(max(config.tokenizer.vocab * SAMPLE_BYTES_A_TOKEN, SAMPLE_BYTES[0]), SAMPLE_BYTES[1])
    appended = link.base is not None
    return Job(
        root=config.storage,
        key=link.key,
        sources=link.sources,
        unit=config.sharding.unit,
        stop_at_bad=config.corpus.bad_documents == "fail",
        # Evaluation stays what it was: what is appended is trained on.
        held_out=0.0 if appended else config.sharding.held_out,
        sample_share=0.0 if appended or config.tokenizer.url else min(1.0, sample / total),
        end_of_text=config.tokenizer.end_of_text,
        sequence=config.block,
        row_group=config.sharding.row_group,
        packing=config.sharding.packing,
        codec=config.sharding.codec,
    )
