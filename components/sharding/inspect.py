"""A look inside a data set: facts, the text of samples and where it comes from, and every hash checked.

Called by the command line. What it gives is plain data, for tables and JSON.

Errors: those of reading a data set; `UserError` for a number that is none of a sample, a step or a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from shardline.components.common.errors import DamagedData, UserError
from shardline.components.sharding import manifest as names
from shardline.components.sharding.blocks import Blocks
from shardline.components.sharding.dataset import Dataset, Split, SplitName
from shardline.components.sharding.manifest import SplitFacts
from shardline.components.sharding.order import DataPolicy, Places

SPLITS: tuple[SplitName, ...] = ("train", "held_out")


def facts(dataset: Dataset) -> dict[str, Any]:
    """What a data set is: splits, sources, codecs, sizes."""
    manifest = dataset.manifest
    files = dataset.all_files()
    width = np.dtype(manifest.dtype).itemsize * (manifest.sequence + 1)
    return {
        "key": manifest.key,
        "fingerprint": manifest.fingerprint,
        "base": manifest.base,
        "url": dataset.url_of(names.MANIFEST),
        "sequence": manifest.sequence,
        "row_group": manifest.row_group,
        "vocab": manifest.vocab,
        "dtype": manifest.dtype,
        "splits": {name: _split_facts(getattr(manifest, name), width) for name in SPLITS},
        "sources": [
            {
                "name": name,
                "files": len(files[number]),
                "bytes": sum(int(file["size"]) for file in files[number]),
                "weight_field": manifest.weight_fields.get(name),
                "blocks": {split: _blocks_of(getattr(manifest, split), number) for split in SPLITS},
            }
            for number, name in enumerate(manifest.sources)
        ],
        "codecs": names.codecs_of(manifest),
        "skipped": asdict(manifest.skipped),
        "near_duplicates": asdict(manifest.near_duplicates),
    }


def _split_facts(split: SplitFacts, width: int) -> dict[str, Any]:
    size = sum(shard.size for shard in split.shards)
    return {
        **{name: getattr(split, name) for name in ("documents", "tokens", "bytes", "text_bytes", "blocks")},
        "shards": len(split.shards),
        "row_groups": sum(shard.groups for shard in split.shards),
        "size": size,
        "ratio": round(size / (split.blocks * width), 4) if split.blocks else None,
    }


def _blocks_of(split: SplitFacts, source: int) -> int:
    return sum(shard.blocks for shard in split.shards if shard.source == source)


class Viewer:
    """Shows blocks and samples with their text and origin."""

    def __init__(self, dataset: Dataset, split: SplitName = "train") -> None:
        self._dataset = dataset
        self._split = dataset.split(split)
        self._tokenizer = dataset.tokenizer()
        self._files = dataset.all_files()

    def block(self, number: int, *, offset: int = 0, length: int | None = None) -> dict[str, Any]:
        """A block, or the part of it that `length` tokens from `offset` on are: its documents, each with its text."""
        if not 0 <= number < self._split.blocks:
            raise UserError(f"there is no block {number}; the split has {self._split.blocks}")
        group, row = (int(each[0]) for each in self._split.geometry.locate(np.array([number])))
        blocks = self._split.read_group(group).blocks().take([row])
        end = min(int(blocks.length[0]), offset + (length or self._split.sequence) + 1)
        return {
            "block": number,
            "offset": offset,
            "source": self._dataset.manifest.sources[int(blocks.source[0])],
            "documents": list(self._documents(blocks, offset, end)),
        }

    def _documents(self, blocks: Blocks, start: int, end: int) -> Iterator[dict[str, Any]]:
        source = int(blocks.source[0])
        edges = [*blocks.starts.tolist(), end]
        for entry, (begin, stop) in enumerate(pairwise(edges)):
            first, last = max(begin, start), min(stop, end)
            if first >= last:
                continue
            tokens = blocks.tokens[0, first:last]
            prompt = max(0, begin + int(blocks.quiet[entry]) + 1 - first) if blocks.quiet[entry] else 0
            yield {
                "file": self._files[source][int(blocks.files[entry])]["url"],
                "at": int(blocks.offsets[entry]),
                "tokens": len(tokens),
                "prompt_tokens": min(prompt, len(tokens)),
                "weight": float(blocks.weights[entry]),
                "text": self._tokenizer.decode(tokens),
            }

    def step(self, policy: DataPolicy, step: int) -> list[dict[str, Any]]:
        """The samples of an optimizer step, in their order."""
        order = self._split.order(policy)
        index, places = order.samples_of(step)
        sequence = order.stage_at(step).stage.sequence
        return [self._sample(int(number), places, at, sequence) for at, number in enumerate(index)]

    def sample(self, policy: DataPolicy, index: int) -> dict[str, Any]:
        """The sample with a global index, and the optimizer step that uses it; None where it is skipped."""
        if index < 0:
            raise UserError(f"there is no sample {index}")
        order = self._split.order(policy)
        step, places = order.find(index)
        sequence = order.stage_of_index(index).stage.sequence
        return {"step": step if step >= 0 else None, **self._sample(index, places, 0, sequence)}

    def _sample(self, index: int, places: Places, at: int, sequence: int) -> dict[str, Any]:
        block = self.block(int(places.blocks[at]), offset=int(places.offsets[at]), length=sequence)
        return {"sample": index, "given_before": int(places.hidden[at]), **block}


def verify(dataset: Dataset, *, on_shard: Callable[[int, int], None] | None = None) -> list[str]:
    """Read all there is and compare every hash; what is wrong, a message each, nothing for a data set that is whole.

    Args:
        on_shard: told how many shards of how many are done.
    """
    problems = [_problem(partial(dataset.read_beside, name)) for name in dataset.manifest.beside]
    total, done = sum(len(getattr(dataset.manifest, name).shards) for name in SPLITS), 0
    for name in SPLITS:
        split, group = dataset.split(name), 0
        for shard in split.facts.shards:
            for number in range(group, group + shard.groups):
                problems.append(_problem(partial(_read_whole, split, number)))
            group, done = group + shard.groups, done + 1
            if on_shard:
                on_shard(done, total)
    return list(dict.fromkeys(message for message in problems if message))


def _read_whole(split: Split, group: int) -> None:
    split.read_group(group).blocks()


def _problem(read: Callable[[], object]) -> str | None:
    try:
        read()
    except DamagedData as error:
        return f"{error.where}: {error.message}"
    return None
