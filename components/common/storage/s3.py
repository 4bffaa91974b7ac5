"""S3: reads in ranges, by s3fs or by obstore, and conditional writes.

Called by `Storage`. Owns who wrote what: each write carries a random mark in the object's metadata, so that a
conditional write whose answer got lost, and which then meets an object, can tell its own from that of another writer.
"""

from __future__ import annotations

import contextlib
import io
import posixpath
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import IO, Any, Protocol

from fsspec.asyn import sync

from shardline.components.common.errors import StorageLost
from shardline.components.common.storage import leftovers
from shardline.components.common.storage.backend import Changed, RangedFile, Removing, names_of, whole
from shardline.components.common.storage.explaining import code_of, repetitions_of
from shardline.components.common.storage.leftovers import Wanted
from shardline.components.common.storage.patience import ShortRead, attempt
from shardline.components.common.storage.s3client import PatientS3FileSystem

#: What `read` asks for first: nearly every file that is read whole is smaller, and then is one request.
_FIRST_READ = 16 << 20
_READ_AHEAD = 4 << 20
_DELETED_AT_ONCE = 1000
_MARK = "shardline-write"
_REFUSED = {"PreconditionFailed", "412"}


@dataclass(frozen=True, slots=True)
class Fetched:
    """The bytes that came, the size of the whole object in bytes, and its ETag."""

    data: bytes
    size: int
    etag: str


class Reader(Protocol):
    """The one request that every read is made of, by s3fs or by obstore."""

    def fetch(self, bucket: str, key: str, *, start: int, end: int, etag: str | None) -> Fetched:
        """Bytes [start, end) as far as the object goes, of the object with that ETag if one is given.

        Raises:
            FileNotFoundError: it is not there.
            Changed: it is another one than `etag` names.
            ShortRead: fewer bytes came than there are.
        """


class S3fsReader:
    """The reads by s3fs's own client; they wait on fsspec's event loop."""

    def __init__(self, fs: PatientS3FileSystem) -> None:
        self._fs = fs

    def fetch(self, bucket: str, key: str, *, start: int, end: int, etag: str | None) -> Fetched:
        found: Fetched = sync(self._fs.loop, self._fetch, bucket, key, start, end, etag)
        return found

    async def _fetch(self, bucket: str, key: str, start: int, end: int, etag: str | None) -> Fetched:
        condition = {"IfMatch": etag} if etag else {}
        asked = {"Bucket": bucket, "Key": key, "Range": f"bytes={start}-{end - 1}", **condition, **self._fs.req_kw}
        try:
            answer = await self._fs._call_s3("get_object", **asked)
        except OSError as error:
            code = code_of(error)
            if code in {"InvalidRange", "416"}:
                return Fetched(b"", 0, "")
            if code in _REFUSED:
                raise Changed("changed while it was being read") from error
            raise
        async with answer["Body"] as body:
            data = await body.read()
        size = size_of_answer(answer.get("ContentRange"), answer["ContentLength"])
        return checked(data, start, end, size, answer["ETag"])


def size_of_answer(content_range: str | None, length: int) -> int:
    """The size of the whole object, from `bytes 0-9/1234`; without it the answer is the whole object."""
    total = (content_range or "").rpartition("/")[2]
    return int(total) if total.isdigit() else length


def checked(data: bytes, start: int, end: int, size: int, etag: str) -> Fetched:
    """What came, if it is all of what was asked for."""
    expected = max(0, min(end, size) - start)
    if len(data) == size != expected:  # a server that knows no ranges sends all of it
        data = data[start:end]
    if len(data) != expected:
        raise ShortRead(f"{len(data)} bytes came of {expected} at {start}")
    return Fetched(data, size, etag)


class S3Backend(Removing):
    """Objects of S3. An object appears whole by itself; `create` and `swap` are conditional writes."""

    _lists_etags = True

    def __init__(self, fs: PatientS3FileSystem) -> None:
        self._fs = fs
        self._reader: Reader | None = None

    # reading

    def exists(self, path: str) -> bool:
        return bool(self._fs.exists(path))

    def size(self, path: str) -> int:
        return int(self._fs.info(path)["size"])

    def names(self, path: str) -> list[str]:
        return names_of(self._fs.ls(path, detail=False))

    def read(self, path: str) -> bytes:
        return self._read(path)[0]

    def _read(self, path: str) -> tuple[bytes, str]:
        first = self._fetch(path, 0, _FIRST_READ)
        parts = [first.data]
        for start in range(len(first.data), first.size, _FIRST_READ):
            parts.append(self._fetch(path, start, start + _FIRST_READ, etag=first.etag).data)
        return b"".join(parts) if len(parts) > 1 else first.data, first.etag

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        return self._fetch(path, offset, offset + length, absent=True).data

    def open(self, path: str) -> IO[bytes]:
        head = self._fs.info(path)
        if head["type"] != "file":
            raise FileNotFoundError(f"{path} is not a file")
        etag = head.get("ETag")

        def read_range(offset: int, length: int) -> bytes:
            return self._fetch(path, offset, offset + length, etag=etag, absent=True).data

        stamp = etag if self._lists_etags else None
        return io.BufferedReader(RangedFile(read_range, int(head["size"]), stamp), _READ_AHEAD)

    def _fetch(self, path: str, start: int, end: int, *, etag: str | None = None, absent: bool = False) -> Fetched:
        bucket, key, _ = self._fs.split_path(path)
        if self._reader is None:
            self._reader = _reader(self._fs)
        reader = self._reader
        return attempt(lambda: reader.fetch(bucket, key, start=start, end=end, etag=etag), absent=absent)

    # writing

    @contextlib.contextmanager
    def writer(self, path: str) -> Iterator[IO[bytes]]:
        mark = uuid.uuid4().hex
        try:
            with whole(self._fs.open(path, "wb", Metadata={_MARK: mark})) as handle:
                yield handle
        except FileNotFoundError as error:
            # The answer to the last request of an upload got lost, and the repeated one found it done.
            if code_of(error) != "NoSuchUpload" or not repetitions_of(error) or self._mark(path) != mark:
                raise

    def create(self, path: str, data: bytes) -> bool:
        mark = uuid.uuid4().hex
        try:
            self._put(path, data, mark, IfNoneMatch="*")
        except OSError as error:
            if code_of(error) not in _REFUSED:
                raise
            return repetitions_of(error) > 0 and self._mark(path) == mark
        return True

    def swap(self, path: str, old: bytes, new: bytes) -> bool:
        found, etag = self._read(path)
        if found != old:
            return False
        mark = uuid.uuid4().hex
        try:
            self._put(path, new, mark, IfMatch=etag)
        except OSError as error:
            if code_of(error) not in _REFUSED:
                raise
            if not repetitions_of(error):
                return False
            if self._mark(path) != mark:
                raise StorageLost(
                    "the answer to a conditional write got lost, and others have written since"
                ) from error
        return True

    def _put(self, path: str, data: bytes, mark: str, **condition: str) -> None:
        bucket, key, _ = self._fs.split_path(path)
        self._fs.call_s3("put_object", Bucket=bucket, Key=key, Body=data, Metadata={_MARK: mark}, **condition)

    def _mark(self, path: str) -> str | None:
        bucket, key, _ = self._fs.split_path(path)
        try:
            head = self._fs.call_s3("head_object", Bucket=bucket, Key=key)
        except FileNotFoundError:
            return None
        return dict(head.get("Metadata", {})).get(_MARK)

    def delete_tree(self, path: str) -> None:
        names = self._fs.find(path)
        for start in range(0, len(names), _DELETED_AT_ONCE):
            sync(self._fs.loop, self._fs._bulk_delete, names[start : start + _DELETED_AT_ONCE])

    def remove_leftovers(self, path: str, of: Wanted) -> int:
        bucket, prefix, _ = self._fs.split_path(path)
        removed = 0
        for upload, now in self._uploads(bucket, f"{prefix}/"):
            key = upload["Key"]
            is_meant = posixpath.dirname(key) == prefix and of(posixpath.basename(key))
            place = {"Bucket": bucket, "Key": key, "UploadId": upload["UploadId"]}
            if is_meant and now - self._last_part(upload, place) >= leftovers.REMOTE_SECONDS:
                with contextlib.suppress(FileNotFoundError):  # somebody else did
                    self._fs.call_s3("abort_multipart_upload", **place)
                    removed += 1
        return removed

    def _uploads(self, bucket: str, prefix: str) -> Iterator[tuple[dict[str, Any], float]]:
        """The uploads that are neither finished nor given up, each with the store's time."""
        marker: dict[str, str] = {}
        while True:
            page = self._fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=prefix, **marker)
            now = parsedate_to_datetime(page["ResponseMetadata"]["HTTPHeaders"]["date"]).timestamp()
            yield from ((upload, now) for upload in page.get("Uploads", []))
            if not page.get("IsTruncated"):
                return
            marker = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    def _last_part(self, upload: dict[str, Any], place: dict[str, str]) -> float:
        """When an upload was begun or, later, had its last part."""
        times, marker = [upload["Initiated"].timestamp()], 0
        with contextlib.suppress(FileNotFoundError):  # it ends just now
            while True:
                page = self._fs.call_s3("list_parts", **place, PartNumberMarker=marker)
                times += [part["LastModified"].timestamp() for part in page.get("Parts", [])]
                if not page.get("IsTruncated"):
                    break
                marker = page["NextPartNumberMarker"]
        return float(max(times))


class AlluxioBackend(S3Backend):
    """Alluxio's proxy takes no notice of conditions: look first, which narrows the race and does not close it."""

    _lists_etags = False

    def create(self, path: str, data: bytes) -> bool:
        if self.exists(path):
            return False
        self._put(path, data, uuid.uuid4().hex)
        return True

    def swap(self, path: str, old: bytes, new: bytes) -> bool:
        if self.read(path) != old:
            return False
        self._put(path, new, uuid.uuid4().hex)
        return True

    def remove_leftovers(self, path: str, of: Wanted) -> int:
        return 0  # its proxy lists no uploads

    def delete_tree(self, path: str) -> None:
        super().delete_tree(path)
        # Here folders are more than the beginnings of names, and stay when they are empty.
        for folder in sorted(self._fs.find(path, withdirs=True), reverse=True):
            self._fs.rm_file(folder)
        self._fs.rm_file(path)


def _reader(fs: PatientS3FileSystem) -> Reader:
    try:
        from shardline.components.common.storage.fast import reader
    except ImportError:
        return S3fsReader(fs)
    return reader(fs) or S3fsReader(fs)
