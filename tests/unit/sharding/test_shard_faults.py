"""Sharding while the machine fails it or others interfere: killed anywhere, no room, a corpus that changes, company."""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shardline.components.common.config import RunConfig, dump
from shardline.components.common.errors import EnvironmentLacking
from shardline.components.common.storage import Storage, leftovers
from shardline.components.sharding.dataset import Dataset
from shardline.components.sharding.inspect import verify
from shardline.components.sharding.making import shard
from shardline.components.sharding.manifest import MANIFEST, Manifest, folder
from shardline.components.sharding.shardfile import hash_of
from tests.commands import COMMAND, environment, eventually, shardline
from tests.contract.servers import lacking

MakeConfig = Callable[..., RunConfig]
PROGRAM = Path(__file__).with_name("shard_process.py")


@pytest.fixture
def corpus(corpus: Path) -> Path:
    """A small one: here a data set is made many times."""
    return corpus / "part0"


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was left a moment ago is removed."""
    monkeypatch.setattr(leftovers, "LOCAL_SECONDS", 0.0)


@pytest.fixture
def expected(corpus: Path, make_config: MakeConfig) -> Manifest:
    """The data set that nothing disturbed."""
    return shard(make_config(corpus, root="undisturbed"))


@pytest.fixture
def do(corpus: Path, make_config: MakeConfig, tmp_path: Path) -> Callable[..., Any]:
    """Has shard_process.py do something, under root NUMBER for each of the numbers."""
    (tmp_path / "config.yaml").write_text(dump(make_config(corpus)))

    def run(what: str, numbers: list[int]) -> Any:
        command = [sys.executable, str(PROGRAM), what, str(tmp_path / "config.yaml"), str(tmp_path)]
        done = subprocess.run([*command, *map(str, numbers)], capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout), done.stderr

    return run


def files_below(root: Path) -> list[Path]:
    """All but those that a reader does not see, as they begin with a dot."""
    return [path for path in root.rglob("*") if path.is_file() and not path.name.startswith(".")]


def nothing_half_made(root: Path, key: str) -> None:
    """What a reader sees there is whole."""
    for path in root.glob("shards/[!.]*"):
        assert hash_of(path.read_bytes()).hex() == path.stem
    if (root / folder(key) / MANIFEST).exists():
        assert verify(Dataset.open(Storage(str(root)), key)) == []


def ends_well(config: RunConfig, expected: Manifest, root: Path) -> None:
    """Run again it makes what an undisturbed run makes, and nothing else is left."""
    assert shard(config) == expected
    assert verify(Dataset.open(Storage(str(root)), expected.key)) == []
    listed = (*expected.train.shards, *expected.held_out.shards)
    assert sorted(path.stem for path in files_below(root / "shards")) == sorted(each.hash for each in listed)
    beside = {path.name for path in files_below(root / folder(expected.key))}
    assert beside == {MANIFEST, *expected.beside}
    assert list(root.rglob(".*")) == [], "left by a killed writer"


def each_goes_on(
    places: list[int], tmp_path: Path, *, make_config: MakeConfig, corpus: Path, expected: Manifest
) -> None:
    for place in places:
        nothing_half_made(tmp_path / str(place), expected.key)
        ends_well(make_config(corpus, root=str(place)), expected, tmp_path / str(place))


def test_killed_before_any_change_of_a_file_it_goes_on(
    do: Any, corpus: Path, make_config: MakeConfig, expected: Manifest, tmp_path: Path
) -> None:
    changes, _ = do("count", [0])
    assert changes > 50
    places = [*sorted(random.Random(4).sample(range(1, changes), 9)), changes - 1]
    ends, _ = do("kill", places)
    assert ends == [[-signal.SIGKILL]] * len(places)
    each_goes_on(places, tmp_path, make_config=make_config, corpus=corpus, expected=expected)


def test_killed_at_any_byte_of_a_file_it_goes_on(
    do: Any, corpus: Path, make_config: MakeConfig, expected: Manifest, tmp_path: Path
) -> None:
    sizes = sorted({path.stat().st_size for path in files_below(tmp_path / "undisturbed")})
    draw = random.Random(5)
    places = sorted({1, *(draw.randrange(1, size) for size in draw.choices(sizes, k=6)), sizes[-1] - 1})
    ends, _ = do("cut", places)
    assert ends == [[-signal.SIGXFSZ]] * len(places)
    each_goes_on(places, tmp_path, make_config=make_config, corpus=corpus, expected=expected)


def test_two_writers_at_once_make_one_data_set(
    do: Any, corpus: Path, make_config: MakeConfig, expected: Manifest, tmp_path: Path
) -> None:
    changes, _ = do("count", [0])
    places = sorted(random.Random(6).sample(range(1, changes), 10))
    ends, errors = do("pause", places)
    assert ends == [[signal.SIGSTOP, 0, 0]] * len(places), errors
    for place in places:
        nothing_half_made(tmp_path / str(place), expected.key)
        ends_well(make_config(corpus, root=str(place)), expected, tmp_path / str(place))


# the command, with workers of its own


@pytest.fixture
def config_file(corpus: Path, make_config: MakeConfig, tmp_path: Path) -> Path:
    """Of a run with two workers and many units."""
    path = tmp_path / "config.yaml"
    path.write_text(dump(make_config(corpus, sharding__unit=2048, sharding__workers=2)))
    return path


def disturbed(config_file: Path, act: Callable[[], None], *, once: Callable[[], bool]) -> tuple[int, str]:
    """How `shardline shard` ended and what it said; as soon as `once` is true it stands still for `act`."""
    command = [*COMMAND, "shard", str(config_file)]
    with subprocess.Popen(
        command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        eventually(lambda: once() or process.poll() is not None)
        assert process.poll() is None, process.communicate()
        os.killpg(process.pid, signal.SIGSTOP)
        act()
        os.killpg(process.pid, signal.SIGCONT)
        errors = process.communicate(timeout=120)[1]
    return process.returncode, errors


@pytest.mark.parametrize(("change", "said"), [("grows", "changed while it was being read"), ("vanishes", "not found")])
def test_a_corpus_file_that_changes_in_the_middle_ends_the_run(
    config_file: Path, corpus: Path, tmp_path: Path, change: str, said: str
) -> None:
    root, last = tmp_path / "root", sorted(corpus.rglob("*.txt"))[-1]
    act = last.unlink if change == "vanishes" else partial(last.write_text, last.read_text() + "One more line.\n")
    code, errors = disturbed(config_file, act, once=lambda: any(root.glob("datasets/*/work/scan-*")))
    assert code == 2 and f"{last}: {said}" in errors and "Traceback" not in errors, errors
    assert not list(root.glob("datasets/*/manifest.json"))
    again = shardline("shard", str(config_file), "--json", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    dataset = Dataset.open(Storage(str(root)), json.loads(again.stdout)["key"])
    texts = [text for name in ("train", "held_out") for text in dataset.texts(name)]  # type: ignore[arg-type]
    assert sorted(texts) == sorted(path.read_text() for path in corpus.rglob("*.txt"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A disk of a given size, mounted; another size makes it so large."""
    place = tmp_path / "disk"

    def sized(size: str) -> Path:
        options = f"size={size}" if not place.exists() else f"remount,size={size}"
        place.mkdir(exist_ok=True)
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "shardline-test", str(place)], capture_output=True, check=False
        )
        if done.returncode:
            lacking("a full disk: this needs the right to mount a tmpfs (root, or CAP_SYS_ADMIN in a container)")
        return place

    yield sized
    if os.path.ismount(place):
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize(("size", "workers"), [("32k", 1), ("64k", 2), ("90k", 1)])
def test_a_full_disk_is_told_and_with_room_it_goes_on(
    small_disk: Any, corpus: Path, make_config: MakeConfig, expected: Manifest, tmp_path: Path, size: str, workers: int
) -> None:
    disk = small_disk(size)
    config = make_config(corpus, root="disk/root", sharding__workers=workers)
    (tmp_path / "config.yaml").write_text(dump(config))
    full = shardline("shard", "config.yaml", cwd=tmp_path)
    assert full.returncode == 3 and "No space left on device; free some space" in full.stderr, full.stderr
    assert str(disk) in full.stderr and "Traceback" not in full.stderr
    nothing_half_made(disk / "root", expected.key)
    assert not (disk / "root" / folder(expected.key) / MANIFEST).exists()
    small_disk("16m")
    ends_well(config, expected, disk / "root")


def test_no_folder_for_temporary_files_is_told(
    corpus: Path, make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(EnvironmentLacking, match=r"no folder for temporary files.*set TMPDIR"):
        shard(make_config(corpus))


@pytest.mark.parametrize(("packed", "workers", "size"), [(False, 1, "32k"), (True, 2, "32k"), (False, 2, "8k")])
def test_no_room_for_temporary_files_is_told(
    small_disk: Any, corpus: Path, make_config: MakeConfig, tmp_path: Path, packed: bool, workers: int, size: str
) -> None:
    if packed:
        (corpus / "large.txt.gz").write_bytes(gzip.compress(b"some line of text\n" * 20_000))
    config = make_config(corpus, sharding__workers=workers, sharding__codec="none", sharding__unit=1 << 20)
    (tmp_path / "config.yaml").write_text(dump(config))
    disk = small_disk(size)
    full = shardline("shard", "config.yaml", cwd=tmp_path, TMPDIR=str(disk))
    assert full.returncode == 3, full.stderr
    assert f"{disk}: cannot be written: No space left on device; free some space there, or set TMPDIR" in full.stderr
    assert "Traceback" not in full.stderr
    assert shard(config).train.documents > 0
