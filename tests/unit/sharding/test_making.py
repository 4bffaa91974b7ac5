from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow.parquet as pq
import pytest

from shardline.components.common.config import RunConfig, dump, parse
from shardline.components.common.errors import DamagedData, EnvironmentLacking, UserError
from shardline.components.common.storage import Storage
from shardline.components.sharding import recipe
from shardline.components.sharding.corpus import CorpusFile
from shardline.components.sharding.dataset import Dataset
from shardline.components.sharding.heldout import drawn
from shardline.components.sharding.making import Progress, shard, shard_part
from shardline.components.sharding.manifest import Manifest, folder, shard_path
from shardline.components.sharding.recipe import recipe_of

MakeConfig = Callable[..., RunConfig]
Prose = Callable[[int, int], str]
ShardUntil = Callable[[RunConfig, str, int], None]


def opened(config: RunConfig, manifest: Manifest) -> Dataset:
    return Dataset.open(Storage(config.storage), manifest.key)


def texts_by_file(dataset: Dataset) -> dict[str, str]:
    """The text that the data set holds of each corpus file."""
    files, tokenizer, found = dataset.all_files(), dataset.tokenizer(), {}
    for name in ("train", "held_out"):
        for document in dataset.split(name).documents():  # type: ignore[arg-type]
            url = files[document.source][document.file]["url"]
            found[url] = found.get(url, "") + tokenizer.decode(document.tokens)
    return found


def test_the_text_of_the_corpus_comes_back(corpus: Path, make_config: MakeConfig) -> None:
    config = make_config(corpus)
    manifest = shard(config)
    expected = {str(path): path.read_text() for path in sorted(corpus.rglob("*.txt"))}
    assert texts_by_file(opened(config, manifest)) == expected
    assert manifest.train.documents + manifest.held_out.documents == len(expected)
    assert manifest.train.bytes + manifest.held_out.bytes == sum(len(text.encode()) for text in expected.values())
    assert manifest.held_out.documents > 0 and len(manifest.train.shards) > 2


def test_workers_codec_and_a_second_time_change_nothing(corpus: Path, make_config: MakeConfig) -> None:
    first = shard(make_config(corpus, root="one"))
    assert shard(make_config(corpus, root="two", sharding__workers=2)) == first
    plain = shard(make_config(corpus, root="three", sharding__codec="none"))
    assert plain.fingerprint == first.fingerprint
    assert plain.train.shards[0].hash != first.train.shards[0].hash
    seen: list[Progress] = []
    assert shard(make_config(corpus, root="one"), on_progress=seen.append) == first and not seen


@pytest.mark.parametrize(
    "change",
    [{"sharding__unit": 4096}, {"training__sequence": 31}, {"sharding__row_group": 5}, {"tokenizer__vocab": 299}],
)
def test_another_recipe_is_another_data_set(corpus: Path, make_config: MakeConfig, change: dict[str, int]) -> None:
    one, other = make_config(corpus), make_config(corpus, **change)
    assert recipe_of(one).links != recipe_of(other).links
    assert shard(one).fingerprint != shard(other).fingerprint


def test_touching_the_corpus_makes_another_key(corpus: Path, make_config: MakeConfig) -> None:
    config = make_config(corpus)
    keys = recipe_of(config).links
    path = next(corpus.rglob("*.txt"))
    os.utime(path, ns=(1, 1))
    assert recipe_of(config).links != keys


def test_progress_covers_every_phase(corpus: Path, make_config: MakeConfig) -> None:
    seen: list[Progress] = []
    shard(make_config(corpus), on_progress=seen.append)
    size = sum(path.stat().st_size for path in corpus.rglob("*.txt"))
    last = {progress.phase: progress for progress in seen}
    assert list(last) == ["scan", "tokenizer", "pack"]
    assert all(progress.done == progress.total and progress.bytes == size for progress in last.values())


def test_a_damaged_record_of_a_broken_run_is_made_again(
    corpus: Path, make_config: MakeConfig, shard_until: ShardUntil, tmp_path: Path
) -> None:
    expected = shard(make_config(corpus, root="whole"))
    config = make_config(corpus, root="broken")
    work = tmp_path / "broken" / folder(expected.key) / "work"

    shard_until(config, "pack", 3)
    (work.parent / "tokenizer.json").write_text("{}")
    for name in ("scan-000001.npz", "pack-000001.npz", "tokenizer.npz"):
        data = bytearray((work / name).read_bytes())
        data[len(data) // 2] ^= 0xFF
        (work / name).write_bytes(data)
        with pytest.raises(DamagedData, match=rf"{name}: is not what was written.*run it again"):
            shard(config)
    assert shard(config) == expected


SCRIPT = """
import sys
from shardline.components.common.config import load
from shardline.components.sharding.making import shard
if __name__ == "__main__":
    shard(load(sys.argv[1]).config, on_progress=lambda progress: print(progress.phase, progress.done, flush=True))
"""


@pytest.mark.parametrize("moment", ["scan 3", "tokenizer 0", "pack 3"])
def test_killed_and_run_again_it_goes_on(corpus: Path, make_config: MakeConfig, tmp_path: Path, moment: str) -> None:
    expected = shard(make_config(corpus, root="whole"))
    config = make_config(corpus, root="broken", sharding__workers=2)
    (tmp_path / "config.yaml").write_text(dump(config))
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(tmp_path / "config.yaml")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == moment:
                process.kill()
                break
    assert process.returncode == -signal.SIGKILL
    wait_until_gone(process.pid)
    assert not (tmp_path / "broken" / folder(expected.key) / "manifest.json").exists()
    done = sorted(os.listdir(tmp_path / "broken" / folder(expected.key) / "work"))
    seen: list[Progress] = []
    assert shard(make_config(corpus, root="broken"), on_progress=seen.append) == expected
    first = {progress.phase: progress.done for progress in reversed(seen)}
    assert first["scan"] == sum(name.startswith("scan") for name in done)
    assert first["pack"] == sum(name.startswith("pack") for name in done)
    assert not (tmp_path / "broken" / folder(expected.key) / "work").exists()


def wait_until_gone(session: int) -> None:
    """Until no process of the session is left: the workers end with their parent."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        found = subprocess.run(["ps", "-o", "pid=", "-s", str(session)], capture_output=True, text=True, check=False)
        if not found.stdout.strip():
            return
        time.sleep(0.1)
    raise AssertionError(f"left over after the kill: {found.stdout}")


@pytest.mark.parametrize("moment", [("scan", 2), ("tokenizer", 0), ("pack", 3), ("pack", "all")])
def test_who_is_overtaken_says_so_and_takes_what_is_there(
    corpus: Path, make_config: MakeConfig, tmp_path: Path, moment: tuple[str, Any]
) -> None:
    config, seen, told = make_config(corpus), [], []

    def meanwhile(progress: Progress) -> None:
        seen.append((progress.phase, progress.done))
        if seen[-1] == (moment[0], progress.total if moment[1] == "all" else moment[1]):
            assert shard(config).train.blocks

    found = shard(config, on_progress=meanwhile, on_overtaken=told.append)
    assert found == shard(make_config(corpus, root="alone"))
    assert told == [found]
    if moment[0] == "pack" and moment[1] != "all":
        assert seen[-1] == moment, "it went on with what was done"
    assert not (tmp_path / "root" / folder(found.key) / "work").exists()


def test_a_part_that_is_overtaken_leaves_nothing(corpus: Path, make_config: MakeConfig, tmp_path: Path) -> None:
    config, told = make_config(corpus), []

    def meanwhile(progress: Progress) -> None:
        if (progress.phase, progress.done) == ("scan", 1):
            shard(config)

    shard_part(config, 0, 2, on_progress=meanwhile, on_overtaken=told.append)
    assert told == [shard(config)]
    assert not (tmp_path / "root" / folder(told[0].key) / "work").exists()


def test_what_is_missing_is_made_again(corpus: Path, make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(corpus)
    manifest = shard(config)
    root = tmp_path / "root"
    victim = root / "shards" / f"{manifest.train.shards[1].hash}.parquet"
    for damage in (
        victim.unlink,
        lambda: victim.write_bytes(b"short"),
        (root / folder(manifest.key) / "index.bin").unlink,
        lambda: (root / folder(manifest.key) / "manifest.json").write_text("{"),
    ):
        damage()
        assert shard(config) == manifest
        assert len(list(opened(config, manifest).texts("train"))) == manifest.train.documents


def test_near_duplicates_of_held_out_text_stay_out_of_training(
    corpus: Path, make_config: MakeConfig, prose: Prose
) -> None:
    config = make_config(corpus)
    before = opened(config, shard(config))
    held_out = next(text for text in before.texts("held_out") if len(text) > 1000)
    # Changed enough to be another document, and one that would be trained on.
    copy, new = (trained_on(body) for body in (held_out, prose(999, 200)))
    (corpus / "copy.txt").write_text(copy)
    (corpus / "new.txt").write_text(new)
    after = shard(config)
    trained = list(opened(config, after).texts("train"))
    assert new in trained and copy not in trained
    assert held_out in opened(config, after).texts("held_out")
    assert after.near_duplicates.documents == 1
    assert after.near_duplicates.first == (f"{corpus}/copy.txt: like held-out text",)


def trained_on(body: str) -> str:
    """`body` under a first line that makes it a document of the training split."""
    texts = (f"Line {number}.\n{body}" for number in range(100))
    return next(text for text in texts if not drawn(text.encode(), 0.15, purpose="held out"))


def test_other_readers_open_the_shards(dataset: Dataset) -> None:
    split = dataset.split("train")
    sequence, shard_ = split.sequence, split.facts.shards[0]
    path = dataset.storage.local_path(f"shards/{shard_.hash}.parquet")
    table = pq.read_table(path)
    assert table.num_rows == shard_.blocks
    ours = split.read_group(0).blocks()
    first = np.frombuffer(table.column("tokens")[0].as_py(), "<u2")
    assert first.tolist() == ours.tokens[0].tolist() and len(first) == sequence + 1
    rows = duckdb.sql(f"select tokens, length, doc_starts, doc_files, doc_offsets, bytes from '{path}'").fetchall()
    assert len(rows) == shard_.blocks
    assert np.frombuffer(rows[1][0], "<u2").tolist() == ours.tokens[1].tolist()
    assert rows[1][1] == ours.length[1] and sum(row[5] for row in rows) == table.column("bytes").to_numpy().sum()


def test_corpus_and_storage_may_be_anywhere(make_config: MakeConfig, prose: Prose) -> None:
    memory = Storage("memory://sharding-test")
    try:
        for number in range(20):
            memory.write(f"corpus/{number}.txt", prose(number, 100).encode())
        config = make_config("memory://sharding-test/corpus", root="memory://sharding-test/root")
        manifest = shard(config)
        assert sum(map(len, texts_by_file(opened(config, manifest)).values())) == sum(
            len(prose(number, 100)) for number in range(20)
        )
    finally:
        memory.delete_tree("")


def test_a_given_tokenizer_is_used(corpus: Path, make_config: MakeConfig, tmp_path: Path) -> None:
    made = opened(make_config(corpus), shard(make_config(corpus)))
    (tmp_path / "given.json").write_bytes(made.tokenizer_json())
    config = make_config(corpus, root="other", tokenizer__url=str(tmp_path / "given.json"))
    manifest = shard(config)
    assert manifest.key != made.manifest.key and manifest.fingerprint == made.manifest.fingerprint
    with pytest.raises(UserError, match=r"missing\.json: not found"):
        shard(make_config(corpus, tokenizer__url=str(tmp_path / "missing.json")))
    with pytest.raises(UserError, match=r"given\.json: has no token '</s>'"):
        config = make_config(corpus, tokenizer__url=str(tmp_path / "given.json"), tokenizer__end_of_text="</s>")
        shard(config)


def test_without_weights_a_data_set_is_what_it_always_was(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    path = dataset.storage.local_path(f"{folder(dataset.manifest.key)}/manifest.json")
    assert json.loads(path.read_text())["version"] == 3 and "weight_fields" not in json.loads(path.read_text())
    (shard_, *_) = dataset.manifest.train.shards
    assert "doc_weights" not in pq.read_schema(dataset.storage.local_path(shard_path(shard_.hash))).names
    # Made by the release before there were weights.
    file = CorpusFile("/corpus/a.jsonl", 1000, "1000-5", "jsonl", False)
    monkeypatch.setattr(recipe, "list_files", lambda source: [file])
    tree = """\
version: 1
run: x
storage: /data
corpus: {urls: /corpus/a.jsonl, prompt_field: q}
tokenizer: {vocab: 400}
sharding: {unit: 8192, row_group: 4, held_out: 0.15, workers: 1}
training: {steps: 1, global_batch: 8, microbatch: 2, sequence: 32}
"""
    (link,) = recipe.recipe_of(parse(tree, source="test").config).links
    assert link.key == "7008dbe3977d64164c64d1b3611c7e91"


def test_names_are_in_the_data_set_as_they_are(tmp_path: Path, make_config: MakeConfig, prose: Prose) -> None:
    corpus = tmp_path / "[a] b%20"
    corpus.mkdir()
    paths = [corpus / "текст.txt", corpus / unicodedata.normalize("NFD", "é.txt"), corpus / "100%25 #1.txt"]
    for number, path in enumerate(paths):
        path.write_text(prose(number, 100))
    (corpus / "*.txt").write_bytes(b"\0")
    config = make_config(corpus, sharding__held_out=0)
    dataset = opened(config, shard(config))
    (files,) = dataset.all_files()
    assert [file["url"] for file in files] == sorted(map(str, [*paths, corpus / "*.txt"]))
    assert dataset.manifest.skipped.first[0].startswith(f"{corpus}/*.txt: holds zero bytes")


def test_bad_files_are_counted_within_a_budget(corpus: Path, make_config: MakeConfig) -> None:
    (corpus / "binary.txt").write_bytes(bytes(range(256)) * 4)
    skipped = shard(make_config(corpus)).skipped
    assert skipped.documents == 1 and skipped.bytes == 1024
    assert skipped.first[0].startswith(f"{corpus}/binary.txt: holds zero bytes")
    with pytest.raises(UserError, match=r"binary\.txt: holds zero bytes.*set corpus\.bad_documents to skip"):
        shard(make_config(corpus, corpus__bad_documents="fail"))
    with pytest.raises(UserError, match=r"1 document\(s\), 1024 of \d+ bytes, cannot be used.*bad_budget \(0\.001\)"):
        shard(make_config(corpus, corpus__bad_budget=0.001))


def test_a_bad_line_is_named_by_its_number_also_by_a_worker(tmp_path: Path, make_config: MakeConfig) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "good"}\n' * 2000 + '{"text": \n' + '{"text": "good"}\n' * 10)
    with pytest.raises(UserError, match=r"a\.jsonl:2001: not valid JSON"):
        shard(make_config(path, corpus__bad_documents="fail", sharding__workers=2))


def test_a_corpus_of_one_document_says_what_to_do(tmp_path: Path, make_config: MakeConfig) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one small document\n")
    with pytest.raises(UserError, match=r"corpus's 1 document\(s\) (are|falls).*(raise|lower) it") as caught:
        shard(make_config(path))
    assert caught.value.exit_code == 2
    manifest = shard(make_config(path, sharding__held_out=0))
    assert (manifest.train.documents, manifest.train.blocks, manifest.held_out.blocks) == (1, 1, 0)
    path.write_text("\ufeff")
    with pytest.raises(UserError, match="there is no document in the corpus"):
        shard(make_config(path))


def test_a_place_that_cannot_be_written_is_named(corpus: Path, make_config: MakeConfig, tmp_path: Path) -> None:
    (tmp_path / "root").write_text("a file is in the way")
    with pytest.raises(EnvironmentLacking, match=str(tmp_path / "root")) as caught:
        shard(make_config(corpus))
    assert caught.value.exit_code == 3
