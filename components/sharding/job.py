"""What the workers need to know, and the small records in which they leave what they found.

Shared by the step and the two passes in `work`. Records lie in the data set's work folder, which is gone when the
manifest is there.
"""

from __future__ import annotations

import functools
import io
import json
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from shardline.components.common.errors import DamagedData, UserError
from shardline.components.common.storage import Storage
from shardline.components.sharding import codec as codecs
from shardline.components.sharding.blocks import U64
from shardline.components.sharding.corpus import SourceFiles
from shardline.components.sharding.documents import line_number, read_piece
from shardline.components.sharding.manifest import PRINTS, TOKENIZER, Skips, folder
from shardline.components.sharding.records import Document, Skipped
from shardline.components.sharding.tokenizer import Tokenizer
from shardline.components.sharding.units import SourceUnits

#: How many of the documents that were left out are named.
NAMED = 20
TRAINED_TOKENIZER = "tokenizer.npz"

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Job:
    """All that the workers need to know.

    `sample_share` is the share of documents that the tokenizer is trained on.
    """

    root: str
    key: str
    sources: tuple[SourceFiles, ...]
    unit: int
    stop_at_bad: bool
    held_out: float
    sample_share: float
    end_of_text: str
    sequence: int
    row_group: int
    packing: str
    codec: str

    @functools.cached_property
    def units(self) -> SourceUnits:
        return SourceUnits([[file.size for file in source.files] for source in self.sources], self.unit)

    @functools.cached_property
    def storage(self) -> Storage:
        return Storage(self.root)

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """Loaded once in each worker, as are the prints; both are there from the second pass on."""
        path = self.path(TOKENIZER)
        return Tokenizer(self.storage.read(path), end_of_text=self.end_of_text, where=self.storage.url_of(path))

    @functools.cached_property
    def held_out_prints(self) -> U64:
        """The fingerprints of all held-out documents, as from `heldout.union`."""
        return np.frombuffer(self.storage.read(self.path(PRINTS)), "<u8").astype(np.uint64)

    @functools.cached_property
    def shard_codec(self) -> str:
        """What the shards are compressed with; decided, where it is to be, before the second pass."""
        if self.codec != codecs.AUTO:
            return self.codec
        return codecs.decided(self.storage, self.key, source=self.sources[0].number).codec

    def __getstate__(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def path(self, *parts: str) -> str:
        """A path, under the storage root, in the data set's folder."""
        return "/".join((folder(self.key), *parts))

    def record(self, phase: str, unit: int) -> str:
        """The path of the record that a pass leaves of a unit."""
        return self.path("work", f"{phase}-{unit:06d}.npz")

    def source_of(self, unit: int) -> SourceFiles:
        return self.sources[self.units.source_of(unit)]

    def documents(self, unit: int, left: Left) -> Iterator[Document]:
        """The documents of a unit; what cannot be read goes to `left`.

        Raises:
            UserError: there is something that cannot be read, and the config says to stop at it.
        """
        source = self.source_of(unit)
        for piece in self.units.pieces(unit):
            for record in read_piece(source.files, piece, fields=source.fields):
                if isinstance(record, Document):
                    yield record
                elif self.stop_at_bad:
                    hint = "mend it, or set corpus.bad_documents to skip"
                    raise UserError(record.reason, where=_place(source, record), hint=hint)
                else:
                    leave_out(source, record, record.size, record.reason, left)


def leave_out(source: SourceFiles, record: Document | Skipped, size: int, reason: str, left: Left) -> None:
    """Add a document of `size` bytes to `left`."""
    # Finding a line's number means counting lines: not for each of a million bad ones.
    left.add(_place(source, record) if len(left.first) < NAMED else "", size, reason)


def _place(source: SourceFiles, record: Document | Skipped) -> str:
    file = source.files[record.file]
    if file.format == "jsonl" and not (isinstance(record, Skipped) and record.size == file.size):
        return f"{file.url}:{line_number(file, record.offset)}"
    return f"{file.url}:{record.offset}" if record.offset else file.url


@dataclass
class Left:
    """What was left out, while it is counted: as `manifest.Skips`."""

    documents: int = 0
    bytes: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    first: list[str] = field(default_factory=list)

    def add(self, place: str, size: int, reason: str) -> None:
        self.merge(Left(1, size, {reason: 1}, [f"{place}: {reason}"]))

    def merge(self, other: Left) -> None:
        self.documents += other.documents
        self.bytes += other.bytes
        self.reasons = dict(sorted((Counter(self.reasons) + Counter(other.reasons)).items()))
        self.first = (self.first + other.first)[:NAMED]

    def facts(self) -> Skips:
        return Skips(documents=self.documents, bytes=self.bytes, reasons=self.reasons, first=tuple(self.first))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def save_record(storage: Storage, path: str, about: dict[str, Any], arrays: Arrays) -> None:
    """Put a record there in one step: a JSON part and arrays."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, about=np.frombuffer(json.dumps(about).encode(), np.uint8), **arrays)
    storage.write(path, buffer.getvalue())


def load_record(storage: Storage, path: str) -> tuple[dict[str, Any], Arrays]:
    """The two parts of a record.

    Raises:
        FileNotFoundError: it is not there.
        DamagedData: it is not what was written; it is gone now, so that it is made again.
    """
    data = storage.read(path)
    try:
        # Each member of the archive has a checksum, which reading it compares.
        with np.load(io.BytesIO(data), allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        return json.loads(arrays.pop("about").tobytes()), arrays
    except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        storage.delete(path)
        raise DamagedData(
            f"is not what was written ({error})", where=storage.url_of(path), hint="run it again: it is made anew"
        ) from error
