"""What killed writers leave behind is removed; what a living one writes is not."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardline.components.common.storage import Storage, leftovers
from tests.commands import eventually

#: Larger than what s3fs sends at once, so that an upload of parts has begun.
SIZE = 52 << 20
WRITER = f"""
import sys
from shardline.components.common.storage import Storage
with Storage(sys.argv[1]).writer(sys.argv[2]) as handle:
    handle.write(bytes({SIZE}))
    print("written", flush=True)
    sys.stdin.readline()
"""


@contextlib.contextmanager
def writing(storage: Storage, path: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has written to `path`, and comes to the end of it when it is told to."""
    command = [sys.executable, "-c", WRITER, storage.url, path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        yield process
        process.kill()


def is_shard(name: str) -> bool:
    return name.endswith(".parquet")


def remove(storage: Storage) -> int:
    return storage.remove_leftovers("shards", is_shard)


@pytest.mark.parametrize("url", ["local", "s3", "hdfs"], indirect=True)
def test_what_a_killed_writer_left_is_removed(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    assert remove(storage) == 0  # there is no such folder
    storage.write("shards/whole.parquet", b"1")
    for path in ("shards/dead.parquet", "shards/other.json", "elsewhere/dead.parquet"):
        with writing(storage, path):
            pass
    assert remove(storage) == 0, "too young"
    monkeypatch.setattr(leftovers, "LOCAL_SECONDS", 0.0)
    monkeypatch.setattr(leftovers, "REMOTE_SECONDS", 1.0)
    eventually(lambda: remove(storage) == 1, seconds=20)
    assert remove(storage) == 0
    eventually(lambda: storage.remove_leftovers("shards", lambda name: name == "other.json") == 1, seconds=20)
    eventually(lambda: storage.remove_leftovers("elsewhere", is_shard) == 1, seconds=20)
    assert storage.names("shards") == ["whole.parquet"]


@pytest.mark.parametrize("url", ["local", "s3", "hdfs"], indirect=True)
def test_what_a_living_writer_writes_stays(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a local folder however long it takes, elsewhere as long as it does not stand still for an hour."""
    monkeypatch.setattr(leftovers, "LOCAL_SECONDS", 0.0)
    with writing(storage, "shards/living.parquet") as process:
        assert remove(storage) == 0
        process.communicate("go on\n", timeout=60)
        assert process.returncode == 0
    assert storage.size("shards/living.parquet") == SIZE
    assert remove(storage) == 0


def test_a_file_of_a_folder_that_is_none_of_ours_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "LOCAL_SECONDS", 0.0)
    names = [".a.parquet.swap", "a.parquet", ".a.parquet", ".a.json.abcdefgh", "a.parquet.abcdefgh"]
    for name in names:
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (0, 0))
    assert Storage(str(tmp_path)).remove_leftovers("", is_shard) == 0
    assert sorted(os.listdir(tmp_path)) == sorted(names)


def test_what_a_killed_swap_left_in_a_folder_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "LOCAL_SECONDS", 0.0)
    left = tmp_path / f".a.parquet.{'0' * 32}"
    left.mkdir()
    with open(left / "new", "wb") as living:
        fcntl.flock(living, fcntl.LOCK_SH)
        assert Storage(str(tmp_path)).remove_leftovers("", is_shard) == 0
    assert Storage(str(tmp_path)).remove_leftovers("", is_shard) == 1
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("url", ["memory", "alluxio"], indirect=True)
def test_where_nothing_can_be_seen_of_them_nothing_is_removed(storage: Storage) -> None:
    storage.write("shards/whole.parquet", b"1")
    assert remove(storage) == 0
    assert storage.names("shards") == ["whole.parquet"]


def test_many_uploads(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a page of them, as the server gives a few at a time here."""
    monkeypatch.setattr(leftovers, "REMOTE_SECONDS", 0.0)
    storage = Storage(s3)
    backend: Any = storage._backend
    bucket, _, folder = s3.removeprefix("s3://").partition("/")
    for number in range(5):
        key = f"{folder}/shards/{number}.parquet"
        upload = backend._fs.call_s3("create_multipart_upload", Bucket=bucket, Key=key)["UploadId"]
        for part in (1, 2, 3):
            place = {"Bucket": bucket, "Key": key, "UploadId": upload, "PartNumber": part}
            backend._fs.call_s3("upload_part", **place, Body=b"1")
    call = backend._fs.call_s3
    limits = {"list_multipart_uploads": {"MaxUploads": 2}, "list_parts": {"MaxParts": 2}}
    monkeypatch.setattr(backend._fs, "call_s3", lambda name, **asked: call(name, **asked, **limits.get(name, {})))
    assert remove(storage) == 5
    assert remove(storage) == 0
