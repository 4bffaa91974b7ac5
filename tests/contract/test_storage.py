"""One suite for every storage back end: what is promised must hold on each."""

from __future__ import annotations

import multiprocessing
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardline.components.common.errors import EnvironmentLacking, UserError
from shardline.components.common.storage import Storage


@pytest.fixture(params=["local", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    yield Storage(str(tmp_path / "root") if request.param == "local" else f"memory://{uuid.uuid4().hex}")


def test_write_read_replace(storage: Storage) -> None:
    storage.write("a/b.bin", b"one")
    storage.write("a/b.bin", b"twice")
    assert storage.read("a/b.bin") == b"twice"
    assert storage.size("a/b.bin") == 5
    assert storage.read_range("a/b.bin", 1, 3) == b"wic"
    assert storage.read_range("a/b.bin", 3, 10) == b"ce"
    assert storage.at("a").read("b.bin") == b"twice"


def test_create_never_replaces(storage: Storage) -> None:
    assert storage.create("x", b"1")
    assert not storage.create("x", b"2")
    assert storage.read("x") == b"1"


def test_swap_only_from_what_is_there(storage: Storage) -> None:
    assert storage.swap("x", None, b"1")
    assert not storage.swap("x", None, b"2")
    assert not storage.swap("x", b"0", b"2")
    assert storage.swap("x", b"1", b"2")
    assert not storage.swap("y", b"1", b"2")
    assert storage.read("x") == b"2"


def test_names_are_sorted_and_direct(storage: Storage) -> None:
    for name in ("b", "a/c", "a/d/e"):
        storage.write(name, b"")
    assert storage.names() == ["a", "b"]
    assert storage.names("a") == ["c", "d"]
    assert storage.names("none") == []


def test_a_writer_that_fails_leaves_nothing(storage: Storage) -> None:
    storage.write("x", b"before")
    with pytest.raises(RuntimeError), storage.writer("x") as handle:
        handle.write(b"half")
        raise RuntimeError
    assert storage.read("x") == b"before"
    with pytest.raises(RuntimeError), storage.writer("new") as handle:
        handle.write(b"half")
        raise RuntimeError
    assert not storage.exists("new")
    assert storage.names() == ["x"]


def test_move_and_delete(storage: Storage) -> None:
    storage.write("a", b"1")
    storage.move("a", "b")
    assert not storage.exists("a")
    assert storage.read("b") == b"1"
    storage.delete("b")
    storage.delete("b")
    storage.write("t/u/v", b"")
    storage.delete_tree("t")
    storage.delete_tree("t")
    assert storage.names() == []


def test_what_is_missing_raises_file_not_found(storage: Storage) -> None:
    with pytest.raises(FileNotFoundError):
        storage.read("none")
    with pytest.raises(FileNotFoundError):
        storage.size("none")


@pytest.mark.parametrize("name", ["a b", "100%", "x%20y", "p+q", "#1", "é", "[a]", "c*d"])
def test_names_are_taken_literally(storage: Storage, name: str) -> None:
    storage.write(f"{name}/{name}.txt", name.encode())
    assert storage.at(name).read(f"{name}.txt") == name.encode()
    assert storage.names() == [name]


def _count_up(url: str, times: int) -> None:
    storage = Storage(url)
    for _ in range(times):
        done = False
        while not done:
            old = storage.read("n")
            done = storage.swap("n", old, str(int(old) + 1).encode())


def test_swap_is_atomic_between_processes(tmp_path: Path) -> None:
    Storage(str(tmp_path)).write("n", b"0")
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=_count_up, args=(str(tmp_path), 50)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert Storage(str(tmp_path)).read("n") == b"150"


def test_a_place_that_may_not_be_written_says_so() -> None:
    # /sys refuses new folders to everyone, root included.
    with pytest.raises(EnvironmentLacking, match=r"/sys/shardline/x: cannot be used") as caught:
        Storage("/sys/shardline").write("x", b"")
    assert caught.value.exit_code == 3


def test_a_file_in_the_way_of_the_root(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(EnvironmentLacking, match="cannot be"):
        Storage(str(tmp_path / "file")).write("x", b"")


def test_unknown_scheme() -> None:
    with pytest.raises(UserError, match="not a storage URL"):
        Storage("nonsense://x")
