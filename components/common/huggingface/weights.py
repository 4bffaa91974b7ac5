"""Where the tensors of a model lie in its safetensors files, read as byte ranges from any storage. No torch.

Called by `pretrained` and by training, which reads each rank's part. The format is a length (8 bytes), a header in
JSON and the tensors' bytes, in row-major order (https://huggingface.co/docs/safetensors). Every header is checked
against its file's size, so a file that was cut short is found before a value is read. Pickled weights are never read.

Errors: `UserError` where there are no safetensors or a tensor's type is not supported; `DamagedData` for a file that is
missing or is not what its header or the index says.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from math import prod
from typing import Any

from shardline.components.common.errors import DamagedData, UserError
from shardline.components.common.storage import Storage

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.00.pth")
#: Bytes of an element, by its name in a header.
ELEMENT_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_LONGEST_HEADER = 100_000_000  # the format's own limit
_SAMPLES, _SAMPLE_BYTES = 16, 4096
_PIECE = 8 << 20  # bytes of one request
_AGAIN = "make or copy it once more"


@dataclass(frozen=True)
class Place:
    """A tensor: `bytes` bytes of `file` from byte `begin` on."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    bytes: int


class Weights:
    """The weight files of a folder, their headers read and checked.

    Attributes:
        tensors: where each one lies, by its name in the files.
        sizes: of the files, in bytes.
    """

    def __init__(self, folder: Storage) -> None:
        self.folder = folder
        self.tensors: dict[str, Place] = {}
        self.sizes: dict[str, int] = {}
        listed = _listed(folder)
        for file in sorted(set(listed.values())) if listed else [WEIGHTS]:
            self.tensors.update(self._header(file))
        for name, file in listed.items():
            if name not in self.tensors or self.tensors[name].file != file:
                raise DamagedData(f"has no tensor {name}, as {INDEX} says", where=folder.url_of(file), hint=_AGAIN)

    def _header(self, file: str) -> dict[str, Place]:
        where = self.folder.url_of(file)
        try:
            size = self.folder.size(file)
            length = int.from_bytes(self.folder.read_range(file, 0, 8), "little")
            if not 2 <= length <= min(_LONGEST_HEADER, size - 8):
                raise DamagedData(f"is no safetensors file, or cut short at {size} bytes", where=where, hint=_AGAIN)
            content = json.loads(self.folder.read_range(file, 8, length))
            places = _places(content, file=file, first=8 + length)
        except FileNotFoundError:
            raise DamagedData("is missing", where=where, hint="bring all files of the model there") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedData(f"is no safetensors file ({error})", where=where, hint=_AGAIN) from None
        end = 8 + length + sum(place.bytes for place in places.values())
        if size != end:
            raise DamagedData(f"has {size} bytes instead of {end}", where=where, hint=_AGAIN)
        for name, place in places.items():
            if place.dtype not in ELEMENT_BYTES:
                supported = ", ".join(ELEMENT_BYTES)
                raise UserError(f"{name} is of type {place.dtype}; supported are {supported}", where=where)
        self.sizes[file] = size
        return places

    def rows(self, name: str, *, first: int, count: int) -> bytes:
        """The bytes of rows `first` to `first + count` of a tensor, in several requests where they are many."""
        place = self.tensors[name]
        row = place.bytes // place.shape[0]
        begin, end = place.begin + first * row, place.begin + (first + count) * row
        pieces = [(at, min(_PIECE, end - at)) for at in range(begin, end, _PIECE)]
        return b"".join(self.folder.read_ranges(place.file, pieces))

    def sample(self, name: str) -> bytes:
        """A small part of a tensor, the same of any two tensors of one size."""
        place = self.tensors[name]
        ranges = _spread(place.begin, place.bytes)
        return b"".join(self.folder.read_ranges(place.file, ranges))

    def digest(self) -> bytes:
        """A hash of every file's name, size and header, and of samples of its tensors.

        It tells models apart and notices a file that was replaced. It is no proof that each byte is the one it was:
        for that all of them had to be read.
        """
        found = hashlib.blake2b(digest_size=16)
        for file, size in sorted(self.sizes.items()):
            first = min(place.begin for place in self.tensors.values() if place.file == file)
            ranges = [(0, first), *_spread(first, size - first)]
            found.update(f"{file} {size}\n".encode())
            for data in self.folder.read_ranges(file, ranges):
                found.update(data)
        return found.digest()


def _listed(folder: Storage) -> dict[str, str]:
    """The index's files by tensor; empty where one file without an index holds all."""
    where = folder.url_of(INDEX)
    try:
        content = json.loads(folder.read(INDEX))
        listed: Any = content["weight_map"]
        if not listed or not all(isinstance(file, str) and _is_plain(file) for file in listed.values()):
            raise ValueError("weight_map does not name files beside it")
    except FileNotFoundError:
        if folder.exists(WEIGHTS):
            return {}
        raise _no_weights(folder) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedData(f"is no index of weights ({error})", where=where, hint=_AGAIN) from None
    return dict(listed)


def _is_plain(file: str) -> bool:
    # What an index names stays in its folder.
    return file.endswith(".safetensors") and "/" not in file and "\\" not in file


def _no_weights(folder: Storage) -> UserError:
    for name in _PICKLED:
        if folder.exists(name):
            return UserError(
                "is a pickle, which may run code when it is read, so it is refused",
                where=folder.url_of(name),
                hint="save the model as safetensors first: `model.save_pretrained(folder)` of transformers does",
            )
    return UserError(f"has neither {WEIGHTS} nor {INDEX}", where=folder.url, hint="name a Hugging Face model folder")


def _places(content: dict[str, Any], *, file: str, first: int) -> dict[str, Place]:
    """Raises ValueError and its like for what is no header."""
    places = {}
    for name, entry in content.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        shape = tuple(entry["shape"])
        if not all(type(number) is int and number >= 0 for number in (begin, end, *shape)):
            raise ValueError(f"{name} has no place")
        element = ELEMENT_BYTES.get(entry["dtype"])
        if element is not None and end - begin != prod(shape) * element:
            raise ValueError(f"{name} has {end - begin} bytes for a shape of {list(shape)}")
        places[name] = Place(file, str(entry["dtype"]), shape, first + begin, end - begin)
    at = first
    for place in sorted(places.values(), key=lambda place: (place.begin, place.bytes)):
        if place.begin != at:
            raise ValueError(f"there is a gap or an overlap at byte {at}")
        at += place.bytes
    if not places:
        raise ValueError("it holds no tensor")
    return places


def _spread(begin: int, size: int) -> list[tuple[int, int]]:
    """Ranges that are spread evenly over `size` bytes, from the first to the last; all of them where they are few."""
    if size <= _SAMPLES * _SAMPLE_BYTES:
        return [(begin, size)] if size else []
    last = size - _SAMPLE_BYTES
    return [(begin + last * number // (_SAMPLES - 1), _SAMPLE_BYTES) for number in range(_SAMPLES)]
