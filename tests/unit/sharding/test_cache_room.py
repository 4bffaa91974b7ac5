"""The node cache: how it stays within its bytes, and that its troubles are never the run's."""

from __future__ import annotations

import os
import shutil
import time
from collections import OrderedDict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.components.sharding.cache import NodeCache
from shardline.components.sharding.cache_files import encode
from shardline.components.sharding.cache_room import Entry, bound_of, to_evict
from tests.unit.sharding.cache_process import columns_of, is_right, key_of
from tests.unit.sharding.cache_support import entries, get, never, result_of, start

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
