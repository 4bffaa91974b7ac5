"""The rules for what is read and in which order: sources, mixtures, stages. Called by `rules`. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

from shardline.components.common.config.data_schema import UNNAMED, Corpus, Source, stream_name
from shardline.components.common.config.presets import ModelShape
from shardline.components.common.config.schema import RunConfig

Found = Iterator[tuple[str, str]]


def broken_data_rules(config: RunConfig, shape: ModelShape | None) -> Found:
    """What is wrong, as the path of a key and what would be right; `shape` is None while it is not known."""
    yield from _sources(config.corpus)
    yield from _sequences(config, shape)
    yield from _rising([stage.at for stage in config.training.stages], "training.stages")
    # Several at one step add up, as they do when a run rolls back twice to the same one.
    skips = enumerate(pairwise(skip.at for skip in config.training.skip), start=1)
    for number, (before, after) in skips:
        if after < before:
            yield f"training.skip.{number}.at", f"must not be before the one before it ({before})"
    yield from _mixtures(config)


def _sources(corpus: Corpus) -> Found:
    if corpus.urls is None and not any(not source.appended for source in corpus.sources.values()):
        yield "corpus", "needs urls, or sources of which not all are appended"
    if corpus.urls is not None:
        for name, source in corpus.sources.items():
            if not source.appended:
                yield f"corpus.sources.{name}", "beside corpus.urls only appended sources may stand: set appended: true"
            elif name == UNNAMED:
                yield f"corpus.sources.{name}", f"must have another name: {UNNAMED} is what corpus.urls names"
    readings: list[tuple[str, Corpus | Source]] = [("corpus", corpus)]
    readings += [(f"corpus.sources.{name}", source) for name, source in corpus.sources.items()]
    for path, reading in readings:
        for index, url in enumerate(reading.urls or []):
            if not url.strip() or url.endswith("://"):
                yield f"{path}.urls.{index}", "must name a file, a folder or a glob"
        for name in ("prompt_field", "weight_field"):
            if getattr(reading, name) and reading.format == "text":
                yield f"{path}.{name}", "is for jsonl and parquet; a text file has no fields"


def _sequences(config: RunConfig, shape: ModelShape | None) -> Found:
    wanted = [("training.sequence", config.training.sequence)]
    stages = enumerate(config.training.stages)
    wanted += [(f"training.stages.{n}.sequence", stage.sequence) for n, stage in stages if stage.sequence]
    for path, sequence in wanted:
        if shape and sequence > shape.max_positions:
            yield path, f"must not exceed model.max_positions ({shape.max_positions})"
        elif config.block % sequence:
            key = "sharding.block" if config.sharding.block else "the longest sequence"
            yield path, f"must divide {key} ({config.block}): samples are whole parts of blocks"


def _rising(steps: list[int], path: str) -> Found:
    for number, (before, after) in enumerate(pairwise(steps), start=1):
        if after <= before:
            yield f"{path}.{number}.at", f"must be later than the one before it ({before})"


def _mixtures(config: RunConfig) -> Found:
    names = list(config.corpus.named_sources())
    stages = enumerate(config.training.stages)
    listed: list[tuple[str, Mapping[str, float]]] = [("training.mixture", config.first_mixture)]
    listed += [(f"training.stages.{n}.mixture", stage.mixture) for n, stage in stages if stage.mixture]
    stream_of: dict[str, str] = {}
    for path, mixture in listed:
        seen: set[str] = set()
        for stream in mixture:
            for source in stream.split("+"):
                if source not in names:
                    yield f"{path}.{stream}", f"there is no source {source!r} in corpus.sources ({', '.join(names)})"
                elif source in seen:
                    yield f"{path}.{stream}", f"names the source {source!r} a second time"
                elif stream_of.setdefault(source, stream_name(stream)) != stream_name(stream):
                    yield (
                        f"{path}.{stream}",
                        f"source {source!r} is part of {stream_of[source]!r} before: its samples would come again",
                    )
                seen.add(source)
    for source in names:
        if source not in stream_of:
            yield f"corpus.sources.{source}", "is in no mixture: name it in training.mixture, or in a stage's"
