"""What the corpus consists of: every input file with its size, stamp and format, in the order of the sorted URLs.

Called by the step when it makes the recipe key, and by the workers to open files. Owns the rules for what a URL of
`corpus.urls` means:

* `stdlib:` is the `*.py` sources of this Python's standard library, `stdlib:asyncio` a part of it.
* What is there under exactly that name is taken literally, whatever characters are in it; else it is a glob.
* A folder stands for all regular files below it; names that start with a dot are left out, folders that are links are
  not entered. A glob stands for files only.

Errors: `UserError` for a URL that names nothing and for a file that changes while it is used.
"""

from __future__ import annotations

import contextlib
import glob
import gzip
import os
import shutil
import stat
import sysconfig
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from fsspec.implementations.local import LocalFileSystem

from shardline.components.common.config.data_schema import Source
from shardline.components.common.errors import UserError, from_os_error
from shardline.components.common.scratch import temporary_file
from shardline.components.common.storage import Changed, backend_of, explained, split_url

Format = Literal["text", "jsonl", "parquet"]

STDLIB = "stdlib:"
_NOT_STDLIB = {"site-packages", "dist-packages", "__pycache__"}
_BY_ENDING: dict[str, Format] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
_REMOTE_STAMPS = (
    *("ETag", "etag", "md5Hash", "content_md5", "LastModified", "last_modified", "updated", "mtime"),
    "modification_time",  # HDFS
)


class Unreadable(Exception):
    """A file's content is not what its name says; the text is the reason."""


@dataclass(frozen=True, slots=True)
class CorpusFile:
    """One input. `size` is in bytes as stored, `stamp` changes when the content does, `packed` means gzip."""

    url: str
    size: int
    stamp: str
    format: Format
    packed: bool


@dataclass(frozen=True, slots=True)
class Fields:
    """Where a record has its text, and its prompt and its weight if there are such."""

    text: str
    prompt: str | None = None
    weight: str | None = None

    @property
    def texts(self) -> list[str]:
        """The fields of text, the prompt's last."""
        return [self.text] if self.prompt is None else [self.text, self.prompt]

    @property
    def by_key(self) -> dict[str, str]:
        """The fields, by the keys of the config that name them."""
        named = {"text_field": self.text, "prompt_field": self.prompt, "weight_field": self.weight}
        return {key: field for key, field in named.items() if field is not None}


@dataclass(frozen=True, kw_only=True)
class SourceFiles:
    """A corpus source: `number` is its place among the data set's sources."""

    name: str
    number: int
    files: tuple[CorpusFile, ...]
    fields: Fields


def list_files(source: Source) -> list[CorpusFile]:
    """The files of a corpus source, each once, sorted by URL.

    Raises:
        UserError: a URL names nothing, or there is no byte of text anywhere.
    """
    found: dict[str, CorpusFile] = {}
    for url in source.urls:
        here = [_file(name, size, stamp, source.format) for name, size, stamp in _expand(url)]
        if not here:
            raise UserError("no file there", where=url, hint="corpus.urls takes files, folders and globs")
        found.update((file.url, file) for file in here)
    if not any(file.size for file in found.values()):
        raise UserError(
            f"the corpus is empty: {len(found)} file(s), 0 bytes",
            where=", ".join(source.urls),
            hint="name files that hold text in corpus.urls",
        )
    return [found[url] for url in sorted(found)]


def _file(url: str, size: int, stamp: str, declared: str) -> CorpusFile:
    name = url.lower()
    packed = name.endswith(".gz")
    ending = os.path.splitext(name.removesuffix(".gz"))[1]
    format_: Format = _BY_ENDING.get(ending, "text") if declared == "auto" else declared  # type: ignore[assignment]
    return CorpusFile(url, size, stamp, format_, packed)


def _expand(url: str) -> Iterable[tuple[str, int, str]]:
    if url.startswith(STDLIB):
        return _expand_stdlib(url)
    fs, path = split_url(url)
    try:
        with explained(url):
            if isinstance(fs, LocalFileSystem):
                return [_local(name, name) for name in _local_names(path)]
            return list(_expand_remote(fs, path))
    except (FileNotFoundError, FileExistsError) as error:
        raise from_os_error(error, url) from error


def _expand_stdlib(url: str) -> Iterable[tuple[str, int, str]]:
    root = stdlib_root()
    top = root / url.removeprefix(STDLIB)
    if not top.exists() or not top.resolve().is_relative_to(root.resolve()):
        return []
    names = [str(top)] if top.is_file() else _walk(str(top), leave_out=_NOT_STDLIB)
    return [_local(STDLIB + Path(name).relative_to(root).as_posix(), name) for name in names if name.endswith(".py")]


def stdlib_root() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def _local_names(path: str) -> list[str]:
    if os.path.isdir(path):
        return _walk(path)
    if os.path.exists(path):
        return [path]
    found = [name for name in glob.glob(path, recursive=True) if os.path.isfile(name)]
    # `**` follows links to folders, round and round: of the names of one file the shortest stays.
    shortest = {os.path.realpath(name): name for name in sorted(found, key=lambda name: (-len(name), name))}
    return list(shortest.values())


def _walk(top: str, *, leave_out: Iterable[str] = ()) -> list[str]:
    names = []
    for folder, below, files in os.walk(top, onerror=_raise):
        below[:] = [name for name in below if not name.startswith(".") and name not in leave_out]
        paths = (os.path.join(folder, name) for name in files if not name.startswith("."))
        names += [path for path in paths if os.path.exists(path) and stat.S_ISREG(os.stat(path).st_mode)]
    return names


def _raise(error: OSError) -> None:
    raise error


def _local(url: str, path: str) -> tuple[str, int, str]:
    status = os.stat(path)
    return url, status.st_size, _local_stamp(status)


def _local_stamp(status: os.stat_result) -> str:
    return f"{status.st_size}-{status.st_mtime_ns}"


def _expand_remote(fs: Any, path: str) -> Iterable[tuple[str, int, str]]:
    try:
        info = fs.info(path)
    except FileNotFoundError as error:
        # fsspec's HTTP says so of a server that cannot be reached, too.
        if isinstance(error.__cause__, OSError) and not isinstance(error.__cause__, FileNotFoundError):
            raise UserError(
                f"cannot be reached: {error.__cause__}", where=path, hint="check the address, and that the server runs"
            ) from error
        entries = fs.glob(path, detail=True) if glob.has_magic(path) else {}
    else:
        entries = fs.find(path, detail=True) if info["type"] == "directory" else {path: info}
    below = len(path.rstrip("/")) + 1
    for name, info in entries.items():
        hidden = not glob.has_magic(path) and any(part.startswith(".") for part in name[below:].split("/"))
        if info["type"] == "file" and not hidden:
            yield fs.unstrip_protocol(name), _remote_size(fs, name, info), _remote_stamp(fs, name, info)


def _remote_size(fs: Any, name: str, info: dict[str, Any]) -> int:
    if info.get("size") is None:
        url = fs.unstrip_protocol(name)
        raise UserError("the server does not say how large it is", where=url, hint="copy it first")
    return int(info["size"])


def _remote_stamp(fs: Any, name: str, info: dict[str, Any]) -> str:
    # A listing has these already; fsspec's own `ukey` would be one more request for each file.
    known = next((str(info[key]) for key in _REMOTE_STAMPS if info.get(key)), None)
    return known if known is not None else str(fs.ukey(name))


@contextlib.contextmanager
def open_file(file: CorpusFile) -> Iterator[tuple[IO[bytes], int]]:
    """`file` opened to read from, gzip taken off, and the number of bytes in it.

    A gzip file is unpacked to a nameless temporary file first: a reader sees all of it or, if it is damaged, nothing.

    Raises:
        Unreadable: it is no gzip file although its name ends in .gz, or it is damaged.
        UserError: it is gone, or it is another than the one that was listed.
    """
    try:
        with _open_raw(file) as raw:
            if not file.packed:
                yield raw, file.size
                return
            with temporary_file() as plain:
                _unpack(raw, plain)
                size = plain.tell()
                plain.seek(0)
                yield plain, size
    except OSError as error:
        raise from_os_error(error, file.url) from error


@contextlib.contextmanager
def _open_raw(file: CorpusFile) -> Iterator[IO[bytes]]:
    url = str(stdlib_root() / file.url.removeprefix(STDLIB)) if file.url.startswith(STDLIB) else file.url
    fs, path = split_url(url)
    if isinstance(fs, LocalFileSystem):
        with open(path, "rb") as handle:
            _check_local(file, handle)
            try:
                yield handle
            except Unreadable:
                _check_local(file, handle)  # or a change that made it so would pass for damage
                raise
            _check_local(file, handle)
        return
    with explained(file.url), backend_of(fs).open(path) as handle:
        raw = getattr(handle, "raw", handle)
        found = (getattr(raw, "size", file.size), getattr(raw, "stamp", None) or file.stamp)
        if found != (file.size, file.stamp):
            raise _changed(file)
        try:
            yield handle
        except Changed as error:
            raise _changed(file) from error


def _check_local(file: CorpusFile, handle: IO[bytes]) -> None:
    if _local_stamp(os.fstat(handle.fileno())) != file.stamp:
        raise _changed(file)


def _changed(file: CorpusFile) -> UserError:
    return UserError("changed while it was being read", where=file.url, hint="run it again when it is complete")


def _unpack(raw: IO[bytes], plain: IO[bytes]) -> None:
    try:
        with gzip.GzipFile(fileobj=raw) as source:
            shutil.copyfileobj(source, plain, 1 << 20)
    except (gzip.BadGzipFile, zlib.error) as error:
        raise Unreadable("not a gzip file, or a damaged one") from error
    except EOFError as error:
        raise Unreadable("a gzip file that is cut short") from error
