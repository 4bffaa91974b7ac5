"""Corpora on stores elsewhere, and the odd URLs, keys, endpoints and servers that users of peers ran into."""

from __future__ import annotations

import contextlib
import functools
import socket
import sys
import time
import uuid
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from fsspec import AbstractFileSystem
from s3fs import S3FileSystem

from shardline.components.common.config.data_schema import Corpus
from shardline.components.common.errors import EnvironmentLacking, ShardlineError, StorageLost, UserError
from shardline.components.common.storage import Storage
from shardline.components.sharding import corpus
from tests.contract import servers
from tests.contract.faults import Rule, proxy
from tests.serving import serving

ODD_NAMES = ["a b", "100%", "100%25", "x%20y", "p+q", "t~1", "#1", "é", "[a]", "c*d"]


def contents(url: str) -> dict[str, bytes]:
    """The corpus at `url`: the last part of each file's URL, and what is read from it."""
    found = {}
    for file in corpus.list_files(Corpus(urls=[url])):
        with corpus.open_file(file) as (handle, size):
            content = handle.read()
            assert len(content) == size
            found[file.url.rpartition("/")[2]] = content
    return found


# S3


@pytest.mark.usefixtures("no_fast_path")
def test_a_folder_of_several_pages(s3: str, moto: str) -> None:
    prefix = s3.removeprefix("s3://")
    fs = S3FileSystem(endpoint_url=moto, key="test", secret="test")
    fs.pipe({f"{prefix}/{number:04}.jsonl": b'{"text": "1"}\n' for number in range(2050)}, batch_size=16)
    found = corpus.list_files(Corpus(urls=[s3]))
    assert [file.url for file in found] == [f"{s3}/{number:04}.jsonl" for number in range(2050)]
    assert len(Storage(s3).names()) == 2050
    Storage(s3).delete_tree("")
    assert Storage(s3).names() == []


def test_odd_keys_on_s3_never_alias(s3: str) -> None:
    _write_odd_names(Storage(s3))
    assert contents(s3) == {f"{name}.jsonl": name.encode() for name in ODD_NAMES}
    for name in ODD_NAMES:
        assert contents(f"{s3}/{name}.jsonl") == {f"{name}.jsonl": name.encode()}


def test_odd_names_on_hdfs_never_alias(hdfs: str) -> None:
    url = f"{hdfs}/{uuid.uuid4().hex}"
    _write_odd_names(Storage(url))
    assert contents(url) == {f"{name}.jsonl": name.encode() for name in ODD_NAMES}
    stamps = [file.stamp for file in corpus.list_files(Corpus(urls=[url]))]
    assert stamps == [file.stamp for file in corpus.list_files(Corpus(urls=[url]))]


def _write_odd_names(storage: Storage) -> None:
    for name in ODD_NAMES:
        storage.write(f"{name}.jsonl", name.encode())


@pytest.mark.parametrize("by", ["obstore", "s3fs"])
@pytest.mark.parametrize("slash", ["", "/"])
@pytest.mark.parametrize("bucket", ["store", "localhost"])
def test_an_endpoint_with_a_path(
    request: pytest.FixtureRequest, aws: pytest.MonkeyPatch, moto: str, bucket: str, slash: str, by: str
) -> None:
    if by == "s3fs":
        request.getfixturevalue("no_fast_path")
    with proxy(moto, prefix="/store") as server:
        address = server.address.replace("127.0.0.1", "localhost")
        fs = S3FileSystem(endpoint_url=address, key="test", secret="test")
        if not fs.exists(bucket):
            fs.mkdir(bucket)
        aws.setenv("AWS_ENDPOINT_URL", address + slash)
        url = f"s3://{bucket}/{uuid.uuid4().hex}"
        storage = Storage(url)
        storage.write("x.txt", b"1")
        assert storage.create("y.txt", b"2")
        assert storage.swap("y.txt", b"2", b"3")
        assert (storage.names(), storage.read("x.txt")) == (["x.txt", "y.txt"], b"1")
        assert storage.read_ranges("x.txt", [(0, 1), (0, 1)]) == [b"1", b"1"]
        assert contents(url) == {"x.txt": b"1", "y.txt": b"3"}
        assert all(f" /{bucket}" in line for line in server.requests)


def test_a_bucket_that_is_not_there(s3: str) -> None:
    with pytest.raises(EnvironmentLacking, match=r"cannot be written: .*; make the bucket first"):
        Storage("s3://no-such-bucket/x").write("y", b"")
    with pytest.raises(EnvironmentLacking, match="make the bucket first"):
        Storage("s3://no-such-bucket/x").create("y", b"")


@pytest.mark.parametrize("by", ["obstore", "s3fs"])
def test_no_credentials(request: pytest.FixtureRequest, aws: pytest.MonkeyPatch, s3: str, by: str) -> None:
    if by == "s3fs":
        request.getfixturevalue("no_fast_path")
    aws.delenv("AWS_ACCESS_KEY_ID")
    aws.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(EnvironmentLacking, match="credentials; set AWS_ACCESS_KEY_ID"):
        Storage(s3).read("x")


def test_an_object_that_changes_while_it_is_open(s3: str) -> None:
    storage = Storage(s3)
    storage.write("x", bytes(9 << 20))
    with storage.open("x") as handle:
        handle.read(10)
        storage.write("x", b"1" * (9 << 20))
        with pytest.raises(OSError, match="changed while it was being read"):
            handle.read()


@pytest.mark.parametrize("url", ["s3", "s3-plain", "hdfs", "alluxio"], indirect=True)
def test_a_corpus_file_that_changes_after_it_was_listed(url: str) -> None:
    storage = Storage(url)
    storage.write("x.txt", b"1")
    for place in (storage.url, storage.url_of("x.txt"), storage.url_of("*.txt")):
        (file,) = corpus.list_files(Corpus(urls=[place]))
        for _ in range(2):
            with corpus.open_file(file) as (handle, _):
                assert handle.read() == b"1"
            AbstractFileSystem.clear_instance_cache()  # as in another process: with no memory of the listing
    time.sleep(0.01)  # HDFS tells times by the millisecond
    storage.write("x.txt", b"12" if url.startswith("alluxio:") else b"2")
    with pytest.raises(UserError, match="changed while it was being read"), corpus.open_file(file) as (handle, _):
        handle.read()


# HDFS


@pytest.mark.parametrize("url", ["hdfs://ns1/x", "hdfs:///x", "hdfs://h:8020/x", "viewfs://ns1/x"])
def test_hdfs_without_its_package(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    with pytest.raises(EnvironmentLacking, match=r"x: \w+:// needs the package hdfs-native; .*shardline\[hdfs\]"):
        Storage(url)


@pytest.mark.parametrize("url", ["hdfs://ns1/x", "hdfs:///x", "viewfs://ns1/x"])
def test_hdfs_that_no_setting_knows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    with pytest.raises(EnvironmentLacking, match=r"name no NameNode.*set HADOOP_CONF_DIR") as caught:
        Storage(url).read("y")
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 3


def test_hdfs_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    setting = "<property><name>dfs.client.failover.max.attempts</name><value>1</value></property>"
    (tmp_path / "hdfs-site.xml").write_text(f"<configuration>{setting}</configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    with pytest.raises(StorageLost, match="/x/y: storage failed") as caught:
        Storage(f"hdfs://127.0.0.1:{servers.free_port()}/x").read("y")
    assert "\n" not in str(caught.value)


@pytest.fixture(params=["refuses", "is silent"])
def dead_name_node(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of one that is gone, or that takes calls and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if request.param == "is silent":
            listener.listen(64)
        yield f"hdfs://127.0.0.1:{listener.getsockname()[1]}/x"


@pytest.mark.timeout(60)
def test_hdfs_that_is_gone_is_waited_for_as_long_as_is_said(
    dead_name_node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left alone, its client waits for minutes, or for ever."""
    monkeypatch.setenv("SHARDLINE_STORAGE_SECONDS", "1")
    storage = Storage(dead_name_node)
    for call in (
        lambda: storage.read("y"),
        lambda: storage.exists("y"),
        storage.names,
        lambda: storage.write("y", b"1"),
        lambda: storage.create("y", b"1"),
        lambda: storage.swap("y", b"1", b"2"),
        lambda: storage.delete("y"),
        lambda: corpus.list_files(Corpus(urls=[dead_name_node])),
    ):
        with pytest.raises(
            StorageLost, match=r"hdfs://127.*: no answer for 1 s \(SHARDLINE_STORAGE_SECONDS\)"
        ) as caught:
            call()
        assert "\n" not in str(caught.value) and caught.value.exit_code == 175


@pytest.mark.timeout(60)
def test_hdfs_that_goes_while_a_file_is_written(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(servers.hdfs(tmp_path_factory.mktemp("hdfs")))
        storage = Storage(f"{url}/{uuid.uuid4().hex}")
        storage.write("x", b"1")
        monkeypatch.setenv("SHARDLINE_STORAGE_SECONDS", "2")
        with pytest.raises(StorageLost, match="/y: "), storage.writer("y") as handle:
            handle.write(bytes(1 << 20))
            stack.close()  # the server ends


def test_hdfs_lock_of_a_dead_writer(hdfs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardline.components.common.storage.hdfs.LOCK_SECONDS", 0.5)
    storage = Storage(f"{hdfs}/{uuid.uuid4().hex}")
    storage.write("x", b"1")
    storage.write(".x.swap/dead", b"2")
    assert storage.swap("x", b"1", b"3")
    assert storage.read("x") == b"3"


def test_hdfs_writer_that_was_pushed_out_of_the_lock(hdfs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(f"{hdfs}/{uuid.uuid4().hex}")
    storage.write("x", b"1")
    backend = storage._backend
    acquire = backend._acquire  # type: ignore[attr-defined]

    def sleep_after(mine: str, lock: str) -> None:
        acquire(mine, lock)
        for name in backend.names(lock):
            backend.delete(f"{lock}/{name}")
        assert Storage(storage.url).swap("x", b"1", b"2")
        Storage(storage.url).write("x", b"1")  # as before, so that a second look alone would see nothing

    monkeypatch.setattr(backend, "_acquire", sleep_after)
    with pytest.raises(StorageLost, match="locked for too long"):
        storage.swap("x", b"1", b"3")
    assert storage.read("x") == b"1"


# others


@pytest.mark.parametrize(
    ("url", "package", "extra"),
    [("gs://b/x", "gcsfs", "gs"), ("az://b/x", "adlfs", "az"), ("abfss://b/x", "adlfs", "az")],
)
def test_a_scheme_whose_package_is_missing(monkeypatch: pytest.MonkeyPatch, url: str, package: str, extra: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(EnvironmentLacking, match=rf"needs the package {package}; pip install 'shardline\[{extra}\]'"):
        Storage(url)


@pytest.mark.parametrize("url", ["alluxio://", "alluxio:///x", "alluxio://host"])
def test_alluxio_without_a_host_or_a_folder(url: str) -> None:
    with pytest.raises(UserError, match=r"alluxio://HOST\[:PORT\]/FOLDER"):
        Storage(url)


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """A plain HTTP server: it knows no ranges."""

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with serving(
        ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(tmp_path)))
    ) as listener:
        yield f"http://127.0.0.1:{listener.server_address[1]}"


@pytest.mark.parametrize("fault", [None, Rule("answer", times=3), Rule("reset", times=3), Rule("cut", "GET", times=3)])
def test_http_is_read(web: str, tmp_path: Path, fault: Rule | None) -> None:
    content = bytes(range(256)) * 40
    (tmp_path / "x.txt").write_bytes(content)
    with proxy(web) as server:
        storage = Storage(server.address)

        def harm() -> None:
            server.rules[:] = [Rule(**{**vars(fault), "met": 0})] if fault else []

        harm()
        assert storage.read("x.txt") == content
        harm()
        assert storage.read_range("x.txt", 100, 50) == content[100:150]
        assert storage.read_range("x.txt", len(content) - 5, 50) == content[-5:]
        harm()
        assert storage.read_ranges("x.txt", [(5, 5), (700, 1)]) == [content[5:10], content[700:701]]
        server.rules.clear()
        assert storage.size("x.txt") == len(content)
        assert not storage.exists("y.txt")
        with pytest.raises(FileNotFoundError):
            storage.read("y.txt")
        assert contents(f"{server.address}/x.txt") == {"x.txt": content}


def test_http_that_fails_for_good(web: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDLINE_STORAGE_SECONDS", "0.5")
    with proxy(web) as server:
        server.rules.append(Rule("answer"))
        for error in (StorageLost, ShardlineError):
            with pytest.raises(error, match=r"x.txt: storage failed: 503"):
                Storage(server.address).read("x.txt")
