"""The node cache: what crosses the network, what an entry holds, and who fetches."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.components.common.config.schema import Cache
from shardline.components.common.errors import ConfigError, DamagedData, StorageLost
from shardline.components.common.storage import Storage
from shardline.components.sharding import cache as caching
from shardline.components.sharding.cache import NodeCache, open_cache
from shardline.components.sharding.cache_files import NotAnEntry, decode, encode, try_lock, unlock
from shardline.components.sharding.dataset import Dataset
from shardline.components.sharding.loader import Loader
from shardline.components.sharding.order import DataPolicy, Stage
from tests.serving import serving
from tests.unit.sharding.cache_process import columns_of, digest_of, is_right, key_of
from tests.unit.sharding.cache_support import entries, get, never, result_of, start

# each byte crosses the network once


class Served(BaseHTTPRequestHandler):
    """Files by ranges; every range that was sent is counted."""

    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # A head and a body that are sent apart wait for each other.

    def __init__(self, root: Path, sent: Counter[tuple[str, int, int]], *arguments: Any) -> None:
        self._root = root
        self._sent = sent
        super().__init__(*arguments)

    def do_GET(self) -> None:
        path = self._root / self.path.lstrip("/")
        if not path.is_file():
            self.send_error(404)
            return
        data = path.read_bytes()
        wanted = self.headers.get("Range")
        first, last = 0, len(data) - 1
        if wanted:
            first, last = (int(part) for part in wanted.removeprefix("bytes=").split("-"))
            last = min(last, len(data) - 1)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        else:
            self.send_response(200)
        self._sent[(path.name, first, last + 1 - first)] += 1
        self.send_header("Content-Length", str(last + 1 - first))
        self.end_headers()
        self.wfile.write(data[first : last + 1])

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture
def served(dataset: Dataset) -> Iterator[tuple[str, Counter[tuple[str, int, int]]]]:
    sent: Counter[tuple[str, int, int]] = Counter()
    root = dataset.storage.local_path("")
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), partial(Served, root, sent))) as server:  # type: ignore[arg-type]
        yield f"http://127.0.0.1:{server.server_port}", sent


def test_each_row_group_crosses_the_network_once_a_node(
    dataset: Dataset, served: tuple[str, Counter[tuple[str, int, int]]], folder: Path
) -> None:
    url, sent = served
    split = dataset.split("train")
    groups = {
        (f"{split.facts.shards[int(entry['shard'])].hash}.parquet", int(entry["offset"]), int(entry["length"]))
        for entry in dataset._index[: split.groups]
    }
    right = [digest_of(split.read_group(group).blocks()) for group in range(split.groups)]
    processes = [start("read", url, dataset.manifest.key, folder, seed) for seed in range(3)]
    results = [result_of(process) for process in processes]
    assert [result["digests"] for result in results] == 3 * [right]
    assert {what: times for what, times in sent.items() if what in groups} == dict.fromkeys(groups, 1)
    found = [result["statistics"] for result in results]
    assert sum(each["misses"] for each in found) == split.groups
    assert sum(each["hits"] + each["waits"] for each in found) == 2 * split.groups
    assert not any(each["damaged"] or each["evictions"] or each["off"] for each in found)


def test_a_cache_changes_no_batch(dataset: Dataset, folder: Path) -> None:
    def batches(data: Dataset) -> list[bytes]:
        split = data.split("train")
        stage = Stage(step=0, global_batch=8, sequence=split.sequence, mixture=(("corpus", "1"),))
        order = split.order(DataPolicy(seed=3, window=4, block=split.sequence, stages=(stage,)))
        with Loader(split, order=order, microbatch=4, dp_rank=0, dp_size=1, position=0) as loader:
            steps = [step for step, _ in zip(loader, range(split.blocks // 8), strict=False)]
        return [np.concatenate([batch.tokens, batch.positions]).tobytes() for step in steps for batch in step]

    right = batches(dataset)
    for _ in range(2):
        cached = Dataset.open(dataset.storage, dataset.manifest.key, cache=Cache(use="always", folder=str(folder)))
        assert batches(cached) == right
    assert cached.cache is not None and cached.cache.statistics().misses == 0 < cached.cache.statistics().hits


def test_what_is_damaged_in_the_storage_is_neither_kept_nor_hidden(dataset: Dataset, folder: Path) -> None:
    path = dataset.storage.local_path(f"shards/{dataset.manifest.train.shards[0].hash}.parquet")
    whole = path.read_bytes()
    cached = Dataset.open(dataset.storage, dataset.manifest.key, cache=Cache(use="always", folder=str(folder)))
    path.write_bytes(whole[:50] + b"\xff" + whole[51:])
    for _ in range(2):
        with pytest.raises(DamagedData, match=path.name):
            cached.split("train").read_group(0)
    path.write_bytes(whole)
    assert digest_of(cached.split("train").read_group(0).blocks()) == digest_of(
        dataset.split("train").read_group(0).blocks()
    )


def test_the_same_row_group_in_another_place_has_its_own_numbers(dataset: Dataset, cache: NodeCache) -> None:
    blocks = dataset.split("train").read_group(0).blocks()
    about: dict[str, Any] = {"sequence": 32, "dtype": np.uint16}
    first = cache.blocks("ab" * 16, first=0, fetch=lambda: blocks, **about)
    again = cache.blocks("ab" * 16, first=100, fetch=never, **about)  # type: ignore[arg-type]
    assert digest_of(first) == digest_of(blocks)
    assert again.numbers.tolist() == (blocks.numbers + 100).tolist()
    assert cache.statistics().misses == 1
    # Bytes that mean something else there are another entry.
    cache.blocks("ab" * 16, first=0, fetch=lambda: blocks, sequence=65, dtype=np.uint16)
    assert cache.statistics().misses == 2


def test_storage_decides_whether_there_is_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    local, remote = Storage(str(tmp_path)), Storage("http://127.0.0.1:1")
    assert open_cache(Cache(), local) is None
    assert open_cache(Cache(use="never"), remote) is None
    opened = open_cache(Cache(), remote)
    assert opened is not None and opened.folder == tmp_path / "xdg" / "shardline" / "blocks-1"
    assert open_cache(Cache(use="always", folder="/x"), local) is not None
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME")
    opened = open_cache(Cache(), remote)
    assert opened is not None and opened.folder.parent == tmp_path / "home" / ".cache" / "shardline"


def test_a_url_is_no_folder_of_a_node(make_config: Any, corpus: Path) -> None:
    with pytest.raises(ConfigError, match=r"resources\.cache\.folder.*must be a folder of the node"):
        make_config(corpus, resources__cache={"folder": "s3://bucket/cache"})


# the format


def test_columns_are_read_only_memory_at_multiples_of_64(cache: NodeCache) -> None:
    get(cache, 1)
    columns = cache.get(key_of(1), never)
    for array in columns.values():
        assert array.ctypes.data % 64 == 0 and not array.flags.writeable and not array.flags.owndata


@given(
    st.dictionaries(
        st.text(max_size=4),
        st.tuples(st.sampled_from(["<u2", "<u4", "<i4", "<i8", "|u1"]), st.lists(st.integers(0, 5), max_size=3)),
        max_size=4,
    )
)
def test_any_columns_come_back(about: dict[str, tuple[str, list[int]]]) -> None:
    columns = {name: np.ones(shape, dtype) for name, (dtype, shape) in about.items()}
    data = b"".join(encode("key", columns))
    found = decode("key", data, check=True)
    assert list(found) == list(columns)
    for name, array in columns.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape and (found[name] == array).all()


def test_any_changed_byte_of_an_entry_and_any_cut_is_noticed() -> None:
    data = b"".join(encode("key", {"a": np.arange(40, dtype=np.int32), "b": np.arange(3, dtype=np.uint16)}))
    for place in range(len(data)):
        with pytest.raises(NotAnEntry):
            decode("key", data[:place], check=True)
        for bit in range(8):
            with pytest.raises(NotAnEntry):
                decode("key", data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :], check=True)
    with pytest.raises(NotAnEntry):
        decode("key", data + b"\0", check=True)
    with pytest.raises(NotAnEntry):
        decode("another", data, check=True)


@pytest.mark.parametrize("how", ["flipped", "zeros", "cut", "empty", "foreign", "another entry"])
def test_a_damaged_entry_is_removed_and_fetched_anew(cache: NodeCache, folder: Path, how: str) -> None:
    for number in range(2):
        get(cache, number)
    path = folder / "blocks-1" / "entries" / key_of(0)
    whole = path.read_bytes()
    damaged = {
        "flipped": whole[:9000] + bytes([whole[9000] ^ 8]) + whole[9001:],
        "zeros": whole[:8192] + bytes(len(whole) - 8192),
        "cut": whole[:-1],
        "empty": b"",
        "foreign": b"PAR1" * 1000,
        "another entry": (path.with_name(key_of(1))).read_bytes(),
    }[how]
    path.write_bytes(damaged)
    other = NodeCache(folder, size=1 << 30)
    get(other, 0)
    assert other.statistics().damaged == other.statistics().misses == 1
    assert path.read_bytes() == whole
    get(NodeCache(folder, size=1 << 30), 0)


def test_a_file_changed_after_it_was_found_sound_is_looked_at_again(cache: NodeCache, folder: Path) -> None:
    get(cache, 0)
    cache.get(key_of(0), never)
    path = folder / "blocks-1" / "entries" / key_of(0)
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(0, 0))
    get(cache, 0)
    assert cache.statistics().damaged == 1


def test_what_is_mapped_outlives_its_file(cache: NodeCache, folder: Path) -> None:
    get(cache, 0)
    columns = cache.get(key_of(0), never)
    for path in entries(folder):
        path.unlink()
    assert is_right(0, columns)


# one fetches, the others wait


def test_threads_that_want_the_same_entry_fetch_it_once(cache: NodeCache) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def fetch() -> dict[str, Any]:
        begun.set()
        assert go_on.wait(60)
        return columns_of(0)

    threads = [threading.Thread(target=cache.get, args=(key_of(0), fetch))]
    threads[0].start()
    assert begun.wait(60)
    threads += [threading.Thread(target=cache.get, args=(key_of(0), never)) for _ in range(4)]
    for thread in threads[1:]:
        thread.start()
    get(cache, 1)  # Nobody else waits for it.
    time.sleep(0.05)
    go_on.set()
    for thread in threads:
        thread.join(60)
    found = cache.statistics()
    assert (found.misses, found.waits + found.hits) == (2, 4)


def test_a_fetch_that_fails_lets_the_next_one_try(cache: NodeCache) -> None:
    def fails() -> dict[str, Any]:
        raise StorageLost("storage failed")

    for _ in range(2):
        with pytest.raises(StorageLost):
            cache.get(key_of(0), fails)
    get(cache, 0)
    assert cache.statistics().off is None


def test_who_waits_for_too_long_fetches_for_itself(cache: NodeCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caching, "_PATIENCE", 0.05)
    lock = try_lock(cache._room.lock_of(key_of(0)))
    assert lock is not None
    get(cache, 0)
    unlock(lock)
    assert cache.statistics().misses == 1 and cache.statistics().off is None
    get(cache, 0)
    cache.get(key_of(0), never)


def test_a_process_killed_at_any_byte_leaves_nothing_wrong(folder: Path) -> None:
    size = sum(len(bytes(part)) for part in encode(key_of(0), columns_of(0)))
    places = [8, 11, 12, 13, 24, 100, *range(512, size, 512), size - 1]
    left = result_of(start("die", folder, *places))
    assert left == [{"ended": -signal.SIGXFSZ, "files": {key_of(0) + ".tmp": at}} for at in places]
    cache = NodeCache(folder, size=1 << 30)
    get(cache, 0)
    cache.get(key_of(0), never)
    assert cache.statistics().damaged == 0


def test_processes_killed_at_any_moment_leave_nothing_wrong(folder: Path) -> None:
    found = result_of(start("killed", folder, 30 * 20_000, 120, 1))
    assert found["misses"] and found["hits"] and found["evictions"] and found["off"] is None
    # Nobody waits for the dead.
    assert result_of(start("churn", folder, 30 * 20_000, 300, 60, 5))["off"] is None
