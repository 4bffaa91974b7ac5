"""Several sources, what is appended to them, prompts, and work in parts: what comes out, and what stays as it was."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardline.components.common.config import RunConfig
from shardline.components.common.errors import UserError
from shardline.components.common.storage import Storage
from shardline.components.sharding import attempt
from shardline.components.sharding.dataset import Dataset
from shardline.components.sharding.heldout import drawn
from shardline.components.sharding.loader import Loader
from shardline.components.sharding.making import merge, shard, shard_part
from shardline.components.sharding.order import policy_of

MakeConfig = Callable[..., RunConfig]
Prose = Callable[[int, int], str]


def write_texts(folder: Path, numbers: range, prose: Prose) -> Path:
    folder.mkdir()
    for number in numbers:
        (folder / f"{number:03d}.txt").write_text(prose(number, 30 + number * 7 % 200), newline="")
    return folder


@pytest.fixture
def folders(tmp_path: Path, prose: Prose) -> dict[str, Path]:
    """Three corpora of different sizes."""
    ranges = {"web": range(100, 140), "code": range(200, 220), "new": range(300, 330)}
    return {name: write_texts(tmp_path / name, numbers, prose) for name, numbers in ranges.items()}


@pytest.fixture
def make(make_config: MakeConfig, folders: dict[str, Path]) -> MakeConfig:
    def with_sources(*names: str, appended: tuple[str, ...] = (), **changes: Any) -> RunConfig:
        sources = {name: {"urls": str(folders[name])} for name in names}
        sources |= {name: {"urls": str(folders[name]), "appended": True} for name in appended}
        return make_config([], corpus__urls=None, corpus__sources=sources, **changes)

    return with_sources


def opened(config: RunConfig) -> Dataset:
    return Dataset.open(Storage(config.storage), shard(config).key)


def texts(dataset: Dataset, split: str = "train") -> dict[str, list[str]]:
    """The documents of each source."""
    tokenizer, found = dataset.tokenizer(), {name: [] for name in dataset.manifest.sources}
    for document in dataset.split(split).documents():  # type: ignore[arg-type]
        found[dataset.manifest.sources[document.source]].append(tokenizer.decode(document.tokens))
    return found


def test_each_source_is_packed_on_its_own(make: MakeConfig, folders: dict[str, Path]) -> None:
    dataset = opened(make("web", "code"))
    held_out, trained = texts(dataset, "held_out"), texts(dataset)
    for name in ("web", "code"):
        assert sorted(held_out[name] + trained[name]) == sorted(p.read_text() for p in folders[name].iterdir())
        shards = [shard for shard in dataset.manifest.train.shards if dataset.manifest.sources[shard.source] == name]
        assert shards and dataset.split("train").stream(name).blocks == sum(shard.blocks for shard in shards)
    both = dataset.split("train").stream("code+web")
    assert both.blocks == dataset.split("train").blocks


def test_samples_come_in_proportion_to_the_weights(make: MakeConfig) -> None:
    weights = {"web": 1, "code": 3}
    config = make("web", "code", training__mixture=weights)
    split = opened(config).split("train")
    with Loader(split, order=split.order(policy_of(config)), microbatch=2, dp_rank=0, dp_size=1, position=0) as loader:
        steps = [batches for batches, _ in zip(loader, range(40), strict=False)]
    numbers = np.concatenate([batch.samples for batches in steps for batch in batches])
    code = split.stream("code").blocks
    assert opened(config).manifest.sources == ("code", "web")
    of_code = numbers < code
    for drawn_so_far in range(1, len(numbers)):
        assert abs(int(of_code[:drawn_so_far].sum()) - 0.75 * drawn_so_far) < 1
    # The smaller source is gone through more often, each epoch whole.
    ordinals = numbers[of_code]
    assert sorted(ordinals[:code].tolist()) == sorted(ordinals[code : 2 * code].tolist())
    assert len(set(ordinals[:code].tolist())) == code


def test_what_is_appended_leaves_what_was_there(make: MakeConfig, folders: dict[str, Path]) -> None:
    before = opened(make("web", "code"))
    config = make("web", "code", appended=("new",), training__stages=[{"at": 5, "mixture": {"web+code": 1, "new": 1}}])
    after = opened(config)
    assert after.manifest.base == before.manifest.key and after.manifest.key != before.manifest.key
    assert after.manifest.sources == ("code", "web", "new")
    assert after.manifest.train.shards[: len(before.manifest.train.shards)] == before.manifest.train.shards
    assert after.manifest.held_out == before.manifest.held_out
    assert after.tokenizer_json() == before.tokenizer_json()
    assert sorted(texts(after)["new"]) == sorted(path.read_text() for path in folders["new"].iterdir())
    assert texts(after)["web"] == texts(before)["web"] and texts(after, "held_out") == {
        **texts(before, "held_out"),
        "new": [],
    }
    for number in range(before.split("held_out").groups):
        one, two = (each.split("held_out").read_group(number).blocks() for each in (before, after))
        assert np.array_equal(one.tokens, two.tokens)
    old = before.split("train").order(policy_of(make("web", "code")))
    new = after.split("train").order(policy_of(config))
    for step in range(5):
        assert old.samples_of(step)[1].blocks.tolist() == new.samples_of(step)[1].blocks.tolist()
    later = np.concatenate([new.samples_of(step)[1].blocks for step in range(5, 9)])
    assert np.count_nonzero(later >= before.split("train").blocks) == len(later) // 2


def test_appended_text_that_is_like_held_out_text_is_not_trained_on(make: MakeConfig, folders: dict[str, Path]) -> None:
    before = opened(make("web", "code"))
    held_out = max((text for found in texts(before, "held_out").values() for text in found), key=len)
    copy = next(
        text for n in range(100) if not drawn((text := f"Line {n}.\n{held_out}").encode(), 0.15, purpose="held out")
    )
    (folders["new"] / "copy.txt").write_text(copy)
    after = opened(
        make("web", "code", appended=("new",), training__stages=[{"at": 5, "mixture": {"web+code": 1, "new": 1}}])
    )
    assert copy not in texts(after)["new"]
    assert after.manifest.near_duplicates.documents == before.manifest.near_duplicates.documents + 1


@pytest.mark.parametrize("parts", [1, 3, 40])
def test_parts_make_the_same_data_set(make: MakeConfig, parts: int) -> None:
    expected = shard(make("web", "code"))
    config = make("web", "code", root="parts")
    errors: list[BaseException] = []

    def work(part: int) -> None:
        try:
            shard_part(config, part, parts)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(part,)) for part in range(parts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert merge(config) == expected
    assert merge(config) == shard(config) == expected


def test_parts_that_wait_for_one_that_never_comes_do_its_share(
    make: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "_PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr(attempt, "_POLL_SECONDS", 0.05)
    waited: list[float] = []
    wait = attempt.Attempt._missing_later

    def waiting(self: attempt.Attempt, phase: attempt.Phase, patience: float) -> list[int]:
        waited.append(patience)
        return wait(self, phase, patience)

    monkeypatch.setattr(attempt.Attempt, "_missing_later", waiting)
    config = make("web", "code", root="parts")
    shard_part(config, 1, 3)
    # Nobody else works: one wait tells, and the units that are left follow each other.
    assert waited[0] == 0.2 and set(waited[1:]) == {0.0} and len(waited) > 2
    with pytest.raises(UserError, match=r"\d+ of \d+ units are not done yet, the first is number 0") as caught:
        merge(config)
    assert caught.value.exit_code == 2
    shard_part(config, 0, 3)
    shard_part(config, 2, 3)
    assert merge(config) == shard(make("web", "code"))


def test_a_part_of_what_is_appended_needs_what_it_is_appended_to(make: MakeConfig) -> None:
    stages = [{"at": 5, "mixture": {"web+code": 1, "new": 1}}]
    config = make("web", "code", appended=("new",), training__stages=stages, root="parts")
    with pytest.raises(UserError, match=r"appended to is not there.*without the appended source first"):
        shard_part(config, 0, 2)
    shard(make("web", "code", root="parts"))
    for part in range(2):
        shard_part(config, part, 2)
    assert merge(config) == shard(make("web", "code", appended=("new",), training__stages=stages))


def test_best_fit_packs_the_same_text(make: MakeConfig) -> None:
    together, apart = opened(make("web")), opened(make("web", sharding__packing="best-fit", root="other"))
    assert sorted(texts(together)["web"]) == sorted(texts(apart)["web"])
    assert together.manifest.key != apart.manifest.key
    one, two = together.manifest.train, apart.manifest.train
    assert (one.documents, one.bytes, one.text_bytes) == (two.documents, two.bytes, two.text_bytes)
    # End to end, a unit's last document ends with a token of its own only where it is the last.
    assert one.tokens == two.tokens and one.blocks <= two.blocks


def test_prompts_are_read_and_not_trained_on(tmp_path: Path, make_config: MakeConfig, prose: Prose) -> None:
    path = tmp_path / "chat.jsonl"
    pairs = [(prose(n, 12 + n % 30), prose(1000 + n, 9 + n % 50)) for n in range(80)]
    lines = [json.dumps({"prompt": question, "text": answer}) for question, answer in pairs]
    path.write_text("\n".join([*lines, '{"text": "no prompt"}', '{"prompt": "p", "text": ""}']) + "\n")
    config = make_config(path, corpus__prompt_field="prompt", sharding__held_out=0.1)
    dataset = opened(config)
    manifest, tokenizer = dataset.manifest, dataset.tokenizer()
    assert manifest.skipped.documents == 1 and "no field 'prompt'" in manifest.skipped.first[0]
    both = [question + answer for question, answer in pairs]
    assert sorted(texts(dataset)["corpus"] + texts(dataset, "held_out")["corpus"]) == sorted(both)
    answers = sum(len(answer.encode()) for _, answer in pairs)
    assert manifest.train.bytes + manifest.held_out.bytes == answers
    assert manifest.train.text_bytes + manifest.held_out.text_bytes == sum(len(text.encode()) for text in both)
    split, trained = dataset.split("train"), []
    with Loader(split, order=split.order(policy_of(config)), microbatch=2, dp_rank=0, dp_size=1, position=0) as loader:
        for batches, _ in zip(loader, range(-(-split.blocks // 8)), strict=False):
            for batch in batches:
                new = batch.index < split.blocks
                trained += batch.targets[new][batch.loss_mask[new]].tolist()
    kept = [answer for question, answer in pairs if question + answer in texts(dataset)["corpus"]]
    expected = [token for answer in kept for token in [*tokenizer.encode([answer])[0].tolist(), tokenizer.end_of_text]]
    assert sorted(trained) == sorted(expected)
