"""Documents with weights: from the corpus's records to what each token counts in the loss."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from shardline.components.common.config import RunConfig
from shardline.components.common.errors import ConfigError, UserError
from shardline.components.common.storage import Storage
from shardline.components.sharding.dataset import Dataset
from shardline.components.sharding.inspect import Viewer, facts, verify
from shardline.components.sharding.loader import Loader, held_out_batches
from shardline.components.sharding.making import shard
from shardline.components.sharding.manifest import Manifest
from shardline.components.sharding.order import policy_of
from tests.unit.sharding.test_loader import policy

MakeConfig = Callable[..., RunConfig]
Prose = Callable[[int, int], str]


def opened(config: RunConfig) -> Dataset:
    return Dataset.open(Storage(config.storage), shard(config).key)


def weight_of(number: int) -> float:
    return [1.0, 0.0, 2.5, 0.125][number % 4]


@pytest.fixture
def records(tmp_path: Path, prose: Prose) -> Path:
    """JSONL: each text begins with its number, which its weight follows from."""
    path = tmp_path / "weighed.jsonl"
    lines = [
        json.dumps({"text": f"{number} {prose(number, 5 + number * 7 % 120)}", "score": weight_of(number)})
        for number in range(80)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(params=["concatenate", "best-fit"])
def dataset(request: pytest.FixtureRequest, records: Path, make_config: MakeConfig) -> Dataset:
    return opened(make_config(records, corpus__weight_field="score", sharding__packing=request.param))


def expected_weights(dataset: Dataset) -> dict[tuple[int, int], float]:
    """The weight of each document by its place: its file and offset."""
    found = {}
    for document in dataset.split("train").documents():
        number = int(dataset.tokenizer().decode(document.tokens).split(" ")[0])
        found[document.file, document.offset] = weight_of(number)
    return found


def test_weights_stay_with_their_documents(dataset: Dataset) -> None:
    expected, split, seen = expected_weights(dataset), dataset.split("train"), set()
    for group in range(split.groups):
        blocks = split.read_group(group).blocks()
        for file, offset, weight in zip(blocks.files, blocks.offsets, blocks.weights, strict=True):
            assert expected[int(file), int(offset)] == weight
            seen.add((int(file), int(offset)))
    assert seen == set(expected) and set(expected.values()) == {0.0, 0.125, 1.0, 2.5}
    assert verify(dataset) == []


def test_the_shards_have_a_column_of_them_for_any_reader(dataset: Dataset) -> None:
    split = dataset.split("train")
    path = dataset.storage.local_path(f"shards/{split.facts.shards[0].hash}.parquet")
    rows = duckdb.sql(f"select doc_starts, doc_weights from '{path}'").fetchall()
    blocks = split.read_group(0).blocks()
    assert all(len(starts) == len(weights) for starts, weights in rows)
    assert rows[0][1] == blocks.weights[: blocks.bounds[1]].tolist()


@pytest.mark.parametrize("sequence", [32, 16, 8])
def test_each_token_counts_as_much_as_its_document(dataset: Dataset, sequence: int) -> None:
    """Also where samples are parts of blocks."""
    expected, split = expected_weights(dataset), dataset.split("train")
    order = split.order(policy(sequence=sequence))
    with Loader(split, order=order, microbatch=4, dp_rank=0, dp_size=1, position=0) as loader:
        steps = [next(loader) for _ in range(-(-split.blocks * 32 // sequence // 12))]
    for step, batches in enumerate(steps):
        places = order.samples_of(step)[1]
        for at, (batch, row) in enumerate((batch, row) for batch in batches for row in range(4)):
            group, inside = split.geometry.locate(places.blocks[at : at + 1])
            block = split.read_group(int(group[0])).blocks().take(inside)
            inner = np.arange(sequence) + places.offsets[at]
            entry = np.searchsorted(block.starts, inner, side="right") - 1
            weights = [expected[int(block.files[e]), int(block.offsets[e])] for e in entry.tolist()]
            assert batch.loss_weights[row].tolist() == np.where(batch.loss_mask[row], weights, 0).tolist()
    assert any((batch.loss_weights[batch.loss_mask] == 0).any() for batches in steps for batch in batches)


def test_held_out_batches_have_them_too(dataset: Dataset) -> None:
    batches = list(held_out_batches(dataset.split("held_out"), microbatch=4, dp_rank=0, dp_size=2))
    found = {float(weight) for batch in batches for weight in batch.loss_weights[batch.loss_mask]}
    assert len(found) > 1 and found <= {0.0, 0.125, 1.0, 2.5}
    assert all((batch.loss_weights[~batch.loss_mask] == 0).all() for batch in batches)


def test_the_manifest_says_which_sources_have_them(dataset: Dataset) -> None:
    manifest = dataset.manifest
    assert (manifest.version, manifest.weight_fields) == (4, {"corpus": "score"})
    assert Manifest.from_json(manifest.to_json(), where="test") == manifest
    assert facts(dataset)["sources"][0]["weight_field"] == "score"
    (document, *_) = Viewer(dataset).block(0)["documents"]
    assert document["weight"] == weight_of(int(document["text"].split("|>")[-1].split(" ")[0]))


def test_weights_are_part_of_what_a_data_set_is(records: Path, make_config: MakeConfig) -> None:
    with_them, without = shard(make_config(records, corpus__weight_field="score")), shard(make_config(records))
    assert with_them.key != without.key and with_them.fingerprint != without.fingerprint
    assert (without.version, without.weight_fields) == (3, {})
    assert with_them.train.tokens == without.train.tokens
    records.write_text(records.read_text().replace('"score": 2.5', '"score": 3.5'))
    other = shard(make_config(records, corpus__weight_field="score"))
    assert other.fingerprint != with_them.fingerprint


def test_workers_and_parts_change_nothing(records: Path, make_config: MakeConfig) -> None:
    alone = shard(make_config(records, corpus__weight_field="score"))
    many = shard(make_config(records, root="many", corpus__weight_field="score", sharding__workers=2))
    assert many == alone


def sources(records: Path, plain: Path, *, appended: bool) -> dict[str, Any]:
    weighed = {"urls": str(records), "weight_field": "score", "appended": appended}
    return {"plain": {"urls": str(plain)}, "weighed": weighed}


@pytest.mark.parametrize("appended", [False, True])
def test_a_source_without_weights_counts_each_token_once(
    records: Path, corpus: Path, make_config: MakeConfig, appended: bool
) -> None:
    made = sources(records, corpus / "part0", appended=appended)
    mixture = {"training__stages": [{"at": 1, "mixture": {"plain": 1, "weighed": 1}}]} if appended else {}
    config = make_config([], corpus__urls=None, corpus__sources=made, **mixture)
    manifest = opened(config).manifest
    assert (manifest.version, manifest.weight_fields) == (4, {"weighed": "score"})
    split = opened(config).split("train")
    number = {name: place for place, name in enumerate(manifest.sources)}
    of: dict[int, set[float]] = {place: set() for place in number.values()}
    with Loader(split, order=split.order(policy_of(config)), microbatch=2, dp_rank=0, dp_size=1, position=0) as loader:
        for batches, _ in zip(loader, range(30), strict=False):
            for batch in batches:
                groups, rows = split.geometry.locate(batch.samples)
                for row, (group, inside) in enumerate(zip(groups.tolist(), rows.tolist(), strict=True)):
                    source = int(split.read_group(group).blocks().source[inside])
                    of[source] |= set(batch.loss_weights[row][batch.loss_mask[row]].tolist())
    assert of[number["plain"]] == {1.0} and len(of[number["weighed"]]) > 2


def test_what_is_no_weight_is_skipped_or_ends_the_run(records: Path, make_config: MakeConfig) -> None:
    lines = records.read_text().splitlines()
    lines[6] = json.dumps({"text": "bad", "score": -1})
    records.write_text("\n".join(lines) + "\n")
    skipped = shard(make_config(records, corpus__weight_field="score")).skipped
    assert skipped.first == (f"{records}:7: field 'score' is no weight: it has to be a number from 0 to 1,000,000",)
    config = make_config(records, corpus__weight_field="score", corpus__bad_documents="fail")
    with pytest.raises(UserError, match=r"weighed\.jsonl:7: field 'score' is no weight"):
        shard(config)
    with pytest.raises(UserError, match=r"cannot be used.*weight_field\) to fields that the records have"):
        shard(make_config(records, corpus__weight_field="no_such"))


def test_a_text_file_has_no_weights(corpus: Path, make_config: MakeConfig) -> None:
    with pytest.raises(ConfigError, match=r"corpus\.weight_field.*is for jsonl and parquet"):
        make_config(corpus, corpus__weight_field="score", corpus__format="text")
    # Where the format goes by the ending, weights hold for those files that can have some.
    assert opened(make_config(corpus, corpus__weight_field="score")).manifest.weight_fields == {"corpus": "score"}
