from __future__ import annotations

import unicodedata
from pathlib import Path

import fsspec
import pytest

from shardline.components.common.config.data_schema import Source
from shardline.components.common.errors import UserError
from shardline.components.sharding.corpus import list_files, open_file


def names(*urls: object) -> list[str]:
    return [file.url for file in list_files(Source(urls=[str(url) for url in urls]))]


def test_a_name_with_pattern_characters_is_taken_literally(tmp_path: Path) -> None:
    folder = tmp_path / "[a] b%20"
    folder.mkdir()
    expected = [folder / "текст.txt", folder / unicodedata.normalize("NFD", "é.txt")]
    for path in expected:
        path.write_text("x")
    (tmp_path / "a b%20").mkdir()
    (tmp_path / "a b%20" / "outside.txt").write_text("x")
    assert names(folder) == sorted(map(str, expected))


def test_folders_globs_and_files_each_once_in_sorted_order(tmp_path: Path) -> None:
    for name in ("b/2.txt", "b/1.txt", "a.jsonl", ".git/config", "b/.hidden", "c.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
    (tmp_path / "loop").symlink_to(tmp_path)
    here = [str(tmp_path / name) for name in ("a.jsonl", "b/1.txt", "b/2.txt", "c.txt")]
    assert names(tmp_path) == here
    assert names(tmp_path / "**/*.txt", tmp_path / "b", tmp_path / "c.txt") == here[1:]


def test_formats_go_by_the_ending(tmp_path: Path) -> None:
    for name in ("a.txt", "b.JSONL", "c.ndjson.gz", "d.parquet", "e"):
        (tmp_path / name).write_text("x")
    files = list_files(Source(urls=[str(tmp_path)]))
    assert [file.format for file in files] == ["text", "jsonl", "jsonl", "parquet", "text"]
    assert [file.packed for file in files] == [False, False, True, False, False]
    assert {file.format for file in list_files(Source(urls=[str(tmp_path)], format="text"))} == {"text"}


def test_a_url_of_any_file_system() -> None:
    fs = fsspec.filesystem("memory")
    try:
        fs.pipe({"/corpus/b.txt": b"two", "/corpus/sub/a.txt": b"one", "/other/c.txt": b"x"})
        assert names("memory://corpus") == ["memory:///corpus/b.txt", "memory:///corpus/sub/a.txt"]
        assert names("memory://*/*.txt") == ["memory:///corpus/b.txt", "memory:///other/c.txt"]
        (file,) = list_files(Source(urls=["memory://corpus/b.txt"]))
        with open_file(file) as (handle, size):
            assert handle.read() == b"two" and size == 3
        assert list_files(Source(urls=["memory://corpus/b.txt"])) == [file]
        fs.pipe("/corpus/b.txt", b"new")
        assert list_files(Source(urls=["memory://corpus/b.txt"])) != [file]
    finally:
        fs.rm("/", recursive=True)


def test_the_standard_library_is_a_corpus() -> None:
    everything = names("stdlib:")
    assert "stdlib:json/decoder.py" in everything and not any("site-packages" in name for name in everything)
    assert names("stdlib:json") == [name for name in everything if name.startswith("stdlib:json/")]
    assert names("stdlib:json/decoder.py") == ["stdlib:json/decoder.py"]


@pytest.mark.parametrize("url", ["/nowhere/at/all", "stdlib:../../etc", "stdlib:no_such_module", "memory://nothing"])
def test_a_url_that_names_nothing_is_named(url: str) -> None:
    with pytest.raises(UserError) as caught:
        names(url)
    assert url in str(caught.value) and caught.value.exit_code == 2


def test_files_without_a_byte_are_an_empty_corpus(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    with pytest.raises(UserError, match="the corpus is empty: 1 file"):
        names(tmp_path)
