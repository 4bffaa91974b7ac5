"""A sample of a corpus as blocks: what codecs are tried on. Called by the making of a data set and by `--explain`.

It depends on the corpus, the tokenizer and the geometry of the blocks alone, so every process draws the same one.

Errors: those of reading the corpus; `UserError` when there is no document in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from shardline.components.common.errors import UserError
from shardline.components.sharding.blocks import Blocks
from shardline.components.sharding.corpus import SourceFiles
from shardline.components.sharding.documents import read_piece
from shardline.components.sharding.packing import Packer, Piece
from shardline.components.sharding.records import Document
from shardline.components.sharding.tokenizer import Tokenizer
from shardline.components.sharding.units import SourceUnits

#: Characters of text in a sample: some millions of tokens, on which all candidates are tried within a few seconds.
CHARACTERS = 6 << 20
#: How many places of the corpus they come from.
PLACES = 16


@dataclass(frozen=True, eq=False, kw_only=True)
class Sample:
    """Row groups as they would be written. `bytes`: UTF-8 bytes of the `documents` that they hold."""

    groups: Sequence[Blocks]
    documents: int
    bytes: int

    @property
    def token_bytes(self) -> int:
        return int(self.groups[0].tokens.itemsize)

    @property
    def raw(self) -> int:
        """Bytes of the tokens in memory."""
        return sum(group.tokens.nbytes for group in self.groups)

    @property
    def blocks(self) -> int:
        return sum(len(group) for group in self.groups)


def draw_texts(sources: Sequence[SourceFiles], *, unit: int, characters: int = CHARACTERS) -> list[str]:
    """Documents from places spread evenly over the sources, `characters` in all or the whole corpus.

    Places are the beginnings of units of `unit` bytes; where one holds too little, others make up for it. A document
    is cut where a place has given its share. What cannot be read is passed over.
    """
    units = SourceUnits([[file.size for file in source.files] for source in sources], unit)
    share = -(-characters // min(PLACES, max(1, len(units))))
    texts: list[str] = []
    left = characters
    for number in _spread(len(units)):
        here = min(share, left)
        for text in _documents(sources, units, number):
            texts.append(text[:here])
            here -= len(texts[-1])
            left -= len(texts[-1])
            if not here:
                break
        if not left:
            break
    if not texts:
        raise UserError("there is no document in the corpus", where="corpus", hint="name text to train on")
    return texts


def _spread(count: int) -> Iterator[int]:
    """All of range(count), those first that are spread over it evenly."""
    first = np.unique(np.arange(PLACES) * count // PLACES).tolist() if count else []
    yield from first
    yield from (number for number in range(count) if number not in first)


def _documents(sources: Sequence[SourceFiles], units: SourceUnits, number: int) -> Iterator[str]:
    source = sources[units.source_of(number)]
    for piece in units.pieces(number):
        for record in read_piece(source.files, piece, fields=source.fields):
            if isinstance(record, Document):
                yield record.whole


def pack_texts(texts: Sequence[str], *, tokenizer: Tokenizer, sequence: int, row_group: int) -> Sample:
    """The blocks that `texts` become, at least one document; `sequence` and `row_group` as in the config."""
    packer = Packer(sequence=sequence, row_group=row_group, dtype=tokenizer.dtype, end_of_text=tokenizer.end_of_text)
    groups: list[Blocks] = []
    for text in texts:
        [ids] = tokenizer.encode([text])
        sizes = tokenizer.byte_sizes(ids, len(text.encode()))
        groups += packer.add(Piece(ids=ids, sizes=sizes, file=0, offset=0))
    groups += packer.finish()
    return Sample(groups=groups, documents=packer.totals.documents, bytes=packer.totals.bytes)
