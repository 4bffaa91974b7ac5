from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, OrderedDict
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
from shardline.components.sharding.cache_room import Entry, bound_of, to_evict
from shardline.components.sharding.dataset import Dataset
from shardline.components.sharding.loader import Loader
from shardline.components.sharding.order import DataPolicy, Stage
from tests.unit.sharding.cache_process import columns_of, digest_of, is_right, key_of

PROGRAM = Path(__file__).with_name("cache_process.py")


def start(*arguments: Any) -> subprocess.Popen[str]:
    command = [sys.executable, str(PROGRAM), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def result_of(process: subprocess.Popen[str]) -> Any:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return json.loads(out)


def entries(folder: Path) -> list[Path]:
    return sorted((folder / "blocks-1" / "entries").iterdir())


def never() -> dict[str, Any]:
    raise AssertionError("this is in the cache")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def cache(folder: Path) -> NodeCache:
    return NodeCache(folder, size=1 << 30)


def get(cache: NodeCache, number: int) -> None:
    assert is_right(number, cache.get(key_of(number), lambda: columns_of(number)))


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
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Served, root, sent)) as server:  # type: ignore[arg-type]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", sent
        server.shutdown()
        thread.join()


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


# bytes


def test_processes_together_stay_within_the_bytes(folder: Path) -> None:
    one = sum(len(bytes(part)) for part in encode(key_of(0), columns_of(0)))
    processes = [start("churn", folder, 10 * one, 300, 40, seed) for seed in range(3)]
    most = 0
    while any(process.poll() is None for process in processes):
        held = 0
        for path in folder.glob("blocks-1/entries/*"):
            try:
                held += path.stat().st_size
            except FileNotFoundError:
                continue
        most = max(most, held)
        time.sleep(0.001)
    results = [result_of(process) for process in processes]
    assert all(result["evictions"] and result["off"] is None for result in results)
    # Looking at one file after the other sees some that have just gone and their successors: one more for each.
    assert 8 * one < most <= (10 + 2 * len(processes)) * one
    assert sum(path.stat().st_size for path in entries(folder)) <= (10 + len(processes)) * one


def test_the_least_recently_used_go_first(folder: Path) -> None:
    one = sum(len(bytes(part)) for part in encode(key_of(0), columns_of(0)))
    cache = NodeCache(folder, size=3 * one)
    for number in range(3):
        get(cache, number)
    for age, number in enumerate((1, 2, 0)):
        os.utime(folder / "blocks-1" / "entries" / key_of(number), ns=(age * 10**9, 0))
    get(cache, 1)
    get(cache, 3)
    assert {path.name for path in entries(folder)} == {key_of(number) for number in (0, 1, 3)}
    assert cache.statistics().evictions == 1


def test_a_use_is_written_down_but_not_each(cache: NodeCache, folder: Path) -> None:
    get(cache, 0)
    path = folder / "blocks-1" / "entries" / key_of(0)
    # The kernel's own account would leave a time in the future alone: a clock was wrong once.
    os.utime(path, ns=(time.time_ns() + 10**16, path.stat().st_mtime_ns))
    cache.get(key_of(0), never)
    first = path.stat()
    assert first.st_mtime_ns < first.st_atime_ns <= time.time_ns()
    cache.get(key_of(0), never)
    # Who sets the times of a file changes this one, too; the kernel, for a mere reader, does not.
    assert path.stat().st_ctime_ns == first.st_ctime_ns


ENTRIES = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 5)), max_size=30)


@given(ENTRIES, st.integers(1, 400), st.integers(0, 400))
def test_who_goes_is_the_shortest_beginning_that_makes_room(
    drawn: list[tuple[int, int]], bound: int, need: int
) -> None:
    everything = [Entry(str(number), size, used) for number, (size, used) in enumerate(drawn)]
    held = sum(entry.size for entry in everything)
    gone = to_evict(everything, bound=bound, need=need)
    kept = [entry for entry in everything if entry not in gone]
    assert not kept or not gone or max(entry.used for entry in gone) <= min(entry.used for entry in kept)
    freed = sum(entry.size for entry in gone)
    if held + need <= bound:
        assert not gone
    else:
        wanted = max(held + need - bound, bound // 16)
        assert freed >= min(wanted, held)
        assert not gone or freed - gone[-1].size < wanted


@given(st.lists(st.integers(0, 9), max_size=40), st.integers(2, 7))
def test_the_folder_holds_what_a_dict_would(
    tmp_path_factory: pytest.TempPathFactory, wanted: list[int], places: int
) -> None:
    folder = tmp_path_factory.mktemp("cache")
    one = sum(len(bytes(part)) for part in encode(key_of(0), columns_of(0, size=400)))
    cache = NodeCache(folder, size=places * one)
    model: OrderedDict[str, None] = OrderedDict()
    misses = 0
    for tick, number in enumerate(wanted):
        key = key_of(number)
        misses += key not in model
        if key not in model and len(model) == places:
            model.popitem(last=False)
        model[key] = None
        model.move_to_end(key)
        found = cache.get(key, lambda number=number: columns_of(number, size=400))  # type: ignore[misc]
        assert is_right(number, found, size=400)
        # Uses within a second of each other are not told apart: here each has a second of its own.
        path = folder / "blocks-1" / "entries" / key
        os.utime(path, ns=(tick * 10**9, path.stat().st_mtime_ns))
        assert {path.name for path in entries(folder)} == set(model)
    assert cache.statistics().misses == misses


@pytest.mark.parametrize("account", [None, b"", b"torn", b"\xff" * 8, b"\0" * 9])
def test_a_wrong_account_is_put_right(folder: Path, account: bytes | None) -> None:
    one = sum(len(bytes(part)) for part in encode(key_of(0), columns_of(0)))
    for number in range(4):
        get(NodeCache(folder, size=4 * one), number)
    path = folder / "blocks-1" / "account"
    path.unlink() if account is None else path.write_bytes(account)
    cache = NodeCache(folder, size=4 * one)
    get(cache, 4)
    assert cache.statistics().evictions == 1
    assert (
        int.from_bytes(path.read_bytes(), "little") == sum(file.stat().st_size for file in entries(folder)) == 4 * one
    )


def test_what_is_not_the_caches_is_left_alone(folder: Path) -> None:
    one = sum(len(bytes(part)) for part in encode(key_of(0), columns_of(0)))
    cache = NodeCache(folder, size=2 * one)
    get(cache, 0)
    foreign = [folder / "notes.txt", entries(folder)[0].with_name("thesis.tmp"), entries(folder)[0].with_name("x" * 32)]
    for path in foreign:
        path.write_bytes(bytes(3 * one))
        os.utime(path, ns=(0, 0))
    left = entries(folder)[0].with_name(key_of(7) + ".tmp")
    left.write_bytes(b"half of an en")
    for number in range(1, 5):
        get(cache, number)
    assert all(path.exists() for path in foreign) and not left.exists()
    assert cache.statistics().evictions == 3 and cache.statistics().off is None


def test_a_small_and_a_large_run_in_one_folder(folder: Path) -> None:
    one = sum(len(bytes(part)) for part in encode(key_of(0), columns_of(0)))
    large, small = NodeCache(folder, size=10 * one), NodeCache(folder, size=3 * one)
    for number in range(8):
        get(large, number)
    assert len(entries(folder)) == 8
    get(small, 0)
    assert len(entries(folder)) == 8  # It has added nothing.
    get(small, 8)
    assert len(entries(folder)) == 3


def test_some_of_the_file_system_is_left_free() -> None:
    gib = 1 << 30
    assert bound_of(16 * gib, held=0, free=100 * gib, capacity=1000 * gib) == 16 * gib
    assert bound_of(16 * gib, held=0, free=15 * gib, capacity=1000 * gib) == 10 * gib
    assert bound_of(16 * gib, held=10 * gib, free=5 * gib, capacity=1000 * gib) == 10 * gib
    assert bound_of(16 * gib, held=0, free=2 * gib, capacity=2 * gib) == 2 * gib - 2 * gib // 20
    assert bound_of(16 * gib, held=gib, free=0, capacity=1000 * gib) < 0
    assert bound_of(16 * gib, held=gib, free=0, capacity=0) == 16 * gib


# nothing but a slower run


def assert_off(cache: NodeCache, caplog: pytest.LogCaptureFixture, reason: str) -> None:
    """Everything is right, and it was said once why nothing is stored."""
    for number in (0, 1, 0, 1):
        get(cache, number)
    assert cache.statistics().misses == 4 and cache.statistics().hits == 0
    assert reason in (cache.statistics().off or "")
    (record,) = caplog.records
    assert reason in record.getMessage() and "resources.cache" in record.getMessage()


def test_a_folder_that_cannot_be_made(caplog: pytest.LogCaptureFixture) -> None:
    # /sys refuses new folders to everyone, root included.
    assert_off(NodeCache(Path("/sys/shardline"), size=1 << 30), caplog, "/sys/shardline")


def test_a_folder_that_is_a_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert_off(NodeCache(tmp_path / "file", size=1 << 30), caplog, "Not a directory")


def test_a_size_that_no_row_group_fits_into(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert_off(NodeCache(folder, size=1000), caplog, "do not fit into the 1,000")


def test_what_was_stored_is_read_where_nothing_can_be(
    cache: NodeCache, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    get(cache, 0)
    locks = folder / "blocks-1" / "locks"
    for path in locks.iterdir():
        path.unlink()
    locks.rmdir()
    locks.write_bytes(b"")
    other = NodeCache(folder, size=1 << 30)
    for number in (0, 1, 0, 1):
        get(other, number)
    found = other.statistics()
    assert (found.hits, found.misses, len(caplog.records)) == (2, 2, 1) and found.off


def test_a_write_that_fails_half_way(folder: Path) -> None:
    found = result_of(start("limited", folder, 10_000))
    assert found["misses"] == 4 and "File too large" in found["off"]
    assert entries(folder) == []


def test_a_folder_that_vanishes_meanwhile_is_made_again(cache: NodeCache, folder: Path) -> None:

    for _ in range(2):
        get(cache, 0)
        shutil.rmtree(folder)
    get(cache, 0)
    cache.get(key_of(0), never)
    assert cache.statistics().off is None
